"""Bodies of requests and answers: the memory they take, and the work on large ones."""
