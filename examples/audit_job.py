"""What spark-submit is given to audit on a cluster: `spark-submit ... examples/audit_job.py audit
run --log ...`.
"""

from escrowmq.__main__ import main

main()
