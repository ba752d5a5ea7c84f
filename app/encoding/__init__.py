"""Values as bytes: JSON, MessagePack, page tokens; and what a refusal says of a wrong name."""
