"""Every flight out of New York in 2013 as a transaction, while producers and the service are
killed. See README.md.
"""
