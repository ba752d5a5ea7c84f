"""What tests share: clocks, builders, a simulated world, a real server to kill."""
