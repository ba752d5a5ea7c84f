"""What those who talk to the service are given: it stands alone and knows no other room."""
