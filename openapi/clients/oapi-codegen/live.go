// A program on the client that oapi-codegen makes: what a user's first one would do.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"

	escrowmq "live/generated"
)

func main() {
	ctx := context.Background()
	authenticate := func(_ context.Context, request *http.Request) error {
		request.Header.Set("Authorization", "Bearer "+os.Getenv("ESCROWMQ_API_KEY"))
		return nil
	}
	client, err := escrowmq.NewClientWithResponses(
		os.Getenv("ESCROWMQ_URL"), escrowmq.WithRequestEditorFn(authenticate))
	check(err)

	begun, err := client.BeginTransactionWithResponse(ctx, nil, begin("live-1"))
	check(err)
	fmt.Println("begin", begun.JSON201.State)

	decided, err := client.CommitTransactionWithResponse(ctx, "live-1")
	check(err)
	if decided.JSON200.State != escrowmq.TransactionStateCommitted {
		log.Fatal(decided.JSON200.State)
	}
	fmt.Println("commit", decided.JSON200.State)

	sent, err := client.SendMessageWithResponse(ctx, "live", nil,
		escrowmq.MessageInput{JSON: map[string]int{"n": 2}})
	check(err)
	fmt.Println("send", sent.JSON2XX.Durability)

	wait := int64(5000)
	received, err := client.ReceiveMessagesWithResponse(
		ctx, "live", escrowmq.ReceiveInput{WaitMs: &wait})
	check(err)
	fmt.Print("receive")
	entries := []escrowmq.AckEntry{}
	for _, message := range received.JSON200.Messages {
		fmt.Print(" ", *message.Payload)
		entries = append(entries, escrowmq.AckEntry{ReceiptHandle: message.ReceiptHandle})
	}
	fmt.Println()

	settled, err := client.AckMessagesWithResponse(ctx, "live", escrowmq.AckInput{Entries: entries})
	check(err)
	fmt.Println("ack", settled.JSON2XX.Accepted)

	_, err = client.BeginTransactionWithResponse(ctx, nil, begin("live-3"))
	check(err)
	_, err = client.RollbackTransactionWithResponse(ctx, "live-3", escrowmq.RollbackInput{})
	check(err)
	refused, err := client.CommitTransactionWithResponse(ctx, "live-3")
	check(err)
	problem := refused.ApplicationProblemJSONDefault
	fmt.Println("refused", problem.Status, problem.Code)
}

func begin(id string) escrowmq.BeginInput {
	return escrowmq.BeginInput{
		TransactionID: &id,
		ProducerGroup: "live",
		Messages: []escrowmq.TransactionMessageInput{
			{Topic: "live", Message: escrowmq.MessageInput{JSON: map[string]int{"n": 1}}},
		},
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
