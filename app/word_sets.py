"""Sets of words in requests and responses. Each is a component of the OpenAPI document.

A name in capitals marks a field of a response; the type beside it, where there is one, is that of a
field of a request, which takes no other word.
"""

from typing import Annotated, Literal, get_args

from app.named_schemas import closed_set, open_set

# --------------------------------------------------------------------------------------------------
# messages

_Durability = Literal["memory", "buffered", "synced", "replicated"]
DURABILITY = open_set(
    "Durability",
    get_args(_Durability),
    "memory: in the write pool, and lost with a crash of the process; only where the service has "
    "one and the request asks for it. buffered: survives a crash of the process. synced: survives "
    "a power loss. replicated: survives the loss of a machine; only where the service waits for "
    "replicas.",
)
Durability = Annotated[_Durability, DURABILITY]

_PayloadEncoding = Literal["utf8", "base64"]
PAYLOAD_ENCODING = open_set(
    "PayloadEncoding", get_args(_PayloadEncoding), "Encoding of a `payload`."
)
PayloadEncoding = Annotated[_PayloadEncoding, PAYLOAD_ENCODING]

PayloadForm = Literal["auto", "utf8", "base64", "omit"]
PayloadView = Annotated[
    PayloadForm,
    closed_set(
        "PayloadView",
        get_args(PayloadForm),
        "Encoding of bodies in a response. auto: utf8 if a body is valid UTF-8, otherwise base64.",
    ),
]

_OutOfRange = Literal["earliest", "latest"]
OutOfRange = Annotated[
    _OutOfRange,
    closed_set(
        "OutOfRange", get_args(_OutOfRange), "Where to continue if an offset is out of range."
    ),
]

PULL_RESULT = open_set(
    "PullResult",
    ("found", "no_new_message", "no_matched_message"),
    "found: there are messages. no_new_message: the queue ends here. no_matched_message: none of "
    "the messages read matches the filter.",
)
TRACE_EVENT_KIND = open_set(
    "TraceEventKind",
    (
        "born", "stored", "queued", "indexed", "leased", "extended", "acked", "nacked", "released",
        "expired", "dead_lettered", "discarded", "skipped", "damaged", "redriven", "reset",
    ),
    "What happened to a message.",
)  # fmt: skip
MESSAGE_STATUS = open_set(
    "MessageStatus",
    (
        "not_reached", "filtered", "before_start", "not_subscribed", "delayed", "ready", "leased",
        "waiting", "waiting_for_key", "acked", "dead_lettered", "discarded", "skipped", "damaged",
        "cancelled", "unknown",
    ),
    "Status of a message for a consumer group. docs/delivery.md has the meaning of each.",
)  # fmt: skip

# --------------------------------------------------------------------------------------------------
# topics

_SchemaKind = Literal["json_schema"]
SchemaKind = Annotated[
    _SchemaKind, open_set("SchemaKind", get_args(_SchemaKind), "Language of a schema of messages.")
]

_SchemaMode = Literal["enforce", "off"]
SchemaMode = Annotated[
    _SchemaMode,
    open_set(
        "SchemaMode",
        get_args(_SchemaMode),
        "enforce: messages that do not match are rejected. off: the schema is stored, and no "
        "message is rejected.",
    ),
]

# --------------------------------------------------------------------------------------------------
# transactions and checks

TRANSACTION_STATE = closed_set(
    "TransactionState",
    ("prepared", "held", "committed", "rolled_back"),
    "prepared: not decided. held: not decided, and not checked until it is resumed. committed, "
    "rolled_back: decided.",
)
RESOLVER = closed_set(
    "Resolver", ("producer", "check", "operator", "policy"), "What decided a transaction."
)
HOLD_REASON = open_set(
    "HoldReason", ("answers_exhausted", "unreachable"), "Why a transaction is held."
)

_CheckDecision = Literal["commit", "rollback", "unknown"]
CHECK_DECISION = closed_set(
    "CheckDecision",
    get_args(_CheckDecision),
    "Answer to a check. unknown: the transaction is still in progress.",
)
CheckDecision = Annotated[_CheckDecision, CHECK_DECISION]

_OperatorDecision = Literal["commit", "rollback"]
OperatorDecision = Annotated[
    _OperatorDecision,
    closed_set("OperatorDecision", get_args(_OperatorDecision), "Decision of an operator."),
]

_OnExhausted = Literal["hold", "rollback"]
OnExhausted = Annotated[
    _OnExhausted,
    open_set(
        "OnExhausted",
        get_args(_OnExhausted),
        "What becomes of a transaction whose outcome stays unknown. hold: an operator decides.",
    ),
]

_CheckMode = Literal["poll", "webhook"]
CHECK_MODE = open_set(
    "CheckMode",
    get_args(_CheckMode),
    "poll: the producer receives checks. webhook: checks are sent to its endpoint.",
)
CheckMode = Annotated[_CheckMode, CHECK_MODE]

CHECK_OUTCOME = open_set(
    "CheckOutcome",
    (*get_args(_CheckDecision), "none"),
    "Answer to a check; none if there was no answer.",
)
NO_ANSWER_REASON = open_set(
    "NoAnswerReason",
    ("timeout", "unreachable", "invalid", "disabled"),
    "Why a check had no answer. invalid: there was a response that is no answer.",
)
TRANSACTION_EVENT_KIND = open_set(
    "TransactionEventKind",
    (
        "half_stored", "put_back", "check_sent", "check_answered", "check_failed", "held",
        "resumed", "committed", "rolled_back",
    ),
    "What happened to a transaction.",
)  # fmt: skip
CHECK_TEST_CASE_NAME = open_set(
    "CheckTestCaseName",
    ("never_seen", "asked_again", "very_old", "wrong_signature", "old_timestamp"),
    "Case of a test of an endpoint for checks.",
)
CheckQuestionKind = Annotated[
    Literal["transaction.check"],
    open_set("CheckQuestionKind", ("transaction.check",), "What a webhook is about."),
]

# --------------------------------------------------------------------------------------------------
# consumer groups

_ReceiveFormat = Literal["message", "cloudevents"]
ReceiveFormat = Annotated[
    _ReceiveFormat,
    closed_set(
        "ReceiveFormat",
        get_args(_ReceiveFormat),
        "Form of the messages in a response. message: in `messages`. cloudevents: as "
        "CloudEvents, in `events`.",
    ),
]

_PushFormat = Literal["message", "cloudevents", "cloudevents_binary"]
PUSH_FORMAT = open_set(
    "PushFormat",
    get_args(_PushFormat),
    "Form of what is pushed. message: JSON with the message as in a receive. cloudevents: a "
    "CloudEvent as JSON. cloudevents_binary: a CloudEvent in headers and body.",
)
PushFormat = Annotated[_PushFormat, PUSH_FORMAT]

PushKind = Annotated[
    Literal["message.delivery"],
    open_set("PushKind", ("message.delivery",), "What a request to a webhook of a group is about."),
]

_GroupStart = Literal["earliest", "latest", "time", "rocketmq"]
GROUP_START = open_set(
    "GroupStart",
    get_args(_GroupStart),
    "Where a group starts in a queue without an offset. time: at the first message stored at "
    "start_at or later. rocketmq: as new groups of RocketMQ, at the earliest message of a queue "
    "that is still in memory from its beginning, else at the latest.",
)
GroupStart = Annotated[_GroupStart, GROUP_START]

_AssignmentStrategy = Literal["average", "circle", "sticky", "manual", "machine_room"]
ASSIGNMENT_STRATEGY = open_set(
    "AssignmentStrategy",
    get_args(_AssignmentStrategy),
    "How members share the queues of a group. average: in runs of neighbouring queues. circle: one "
    "by one in turn. sticky: evenly, moving as few queues as possible. manual: as the members ask "
    "for them. machine_room: by average among the members in the room of the queue.",
)
AssignmentStrategy = Annotated[_AssignmentStrategy, ASSIGNMENT_STRATEGY]

_ResetTarget = Literal["earliest", "latest", "time", "offset"]
ResetTarget = Annotated[
    _ResetTarget,
    closed_set("ResetTarget", get_args(_ResetTarget), "Where a group continues after a reset."),
]

_RedriveSelect = Literal["all", "query", "ids"]
RedriveSelect = Annotated[
    _RedriveSelect,
    closed_set("RedriveSelect", get_args(_RedriveSelect), "Which dead letters are redriven."),
]

# --------------------------------------------------------------------------------------------------
# schedules, requests, tasks

_CatchUp = Literal["skip", "once", "all"]
CATCH_UP = open_set(
    "CatchUp",
    get_args(_CatchUp),
    "What to do about missed occurrences: skip all of them, send the last one (once), or send the "
    "last hundred (all).",
)
CatchUp = Annotated[_CatchUp, CATCH_UP]

_ScheduleKind = Literal["message", "cron"]
SCHEDULE_KIND = open_set(
    "ScheduleKind",
    get_args(_ScheduleKind),
    "message: a delayed message. cron: a message for every time that matches a cron line.",
)
ScheduleKind = Annotated[_ScheduleKind, SCHEDULE_KIND]

SCHEDULE_STATE = closed_set(
    "ScheduleState",
    ("scheduled", "paused", "delivered", "cancelled", "set_aside"),
    "State of a schedule; paused for kind cron alone. set_aside: skipped, because of an error.",
)
FIRING_KIND = open_set(
    "FiringKind",
    ("fired", "skipped", "set_aside", "counted_anew"),
    "What happened to a cron schedule. counted_anew: it continues from the current time, since the "
    "clock had been ahead.",
)
REQUEST_STATE = closed_set(
    "RequestState", ("pending", "replied", "timed_out", "cancelled"), "State of a request."
)
TASK_STATE = open_set("TaskState", ("running", "done", "cancelled", "failed"), "State of a task.")
TASK_KIND = open_set("TaskKind", ("redrive", "verify_store", "run_retention"), "What a task does.")

# --------------------------------------------------------------------------------------------------
# audit

_ReportKind = Literal["transaction_outcomes"]
REPORT_KIND = open_set("ReportKind", get_args(_ReportKind), "What a report is about.")
ReportKind = Annotated[_ReportKind, REPORT_KIND]

REPORT_STATE = open_set(
    "ReportState", ("queued", "running", "done", "failed"), "State of a report."
)

_ReportFormat = Literal["json", "csv", "html", "parquet"]
ReportFormat = Annotated[
    _ReportFormat,
    closed_set(
        "ReportFormat",
        get_args(_ReportFormat),
        "json: the report. csv: its findings. html: the report with plots. parquet: one row for "
        "each transaction.",
    ),
]

# --------------------------------------------------------------------------------------------------
# nodes

Role = Literal["primary", "replica"]
NODE_ROLE = open_set("NodeRole", get_args(Role), "A service, or a replica in its place.")
NodeRole = Annotated[Role, NODE_ROLE]

_Permission = Literal["read_write"]
PERMISSION = open_set(
    "TopicPermission", get_args(_Permission), "What clients may do with a topic there."
)
Permission = Annotated[_Permission, PERMISSION]

FILTERS = ("tag", "sql92")
NODE_FILTER = open_set("NodeFilter", FILTERS, "Kind of filter that a node evaluates.")
