module escrowmq/load

go 1.21
