"""Events: messages in the form of CloudEvents 1.0."""
