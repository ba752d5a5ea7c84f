// A program on the client that ogen makes: what a user's first one would do.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/go-faster/jx"

	escrowmq "live/generated"
)

// key gives the API key to every operation. Without a key, return an empty Bearer.
type key string

func (k key) Bearer(context.Context, escrowmq.OperationName) (escrowmq.Bearer, error) {
	return escrowmq.Bearer{Token: string(k)}, nil
}

func main() {
	ctx := context.Background()
	client, err := escrowmq.NewClient(os.Getenv("ESCROWMQ_URL"), key(os.Getenv("ESCROWMQ_API_KEY")))
	check(err)

	begun, err := begin(ctx, client, "live-1")
	check(err)
	fmt.Println("begin", begun.State)

	decided, err := client.CommitTransaction(ctx,
		escrowmq.CommitTransactionParams{TransactionID: "live-1"})
	check(err)
	fmt.Println("commit", decided.State)

	sent, err := client.SendMessage(ctx, &escrowmq.MessageInput{JSON: jx.Raw(`{"n":2}`)},
		escrowmq.SendMessageParams{Topic: "live"})
	check(err)
	fmt.Println("send", sent.Response.Durability)

	received, err := client.ReceiveMessages(ctx,
		escrowmq.NewOptReceiveInput(escrowmq.ReceiveInput{WaitMs: escrowmq.NewOptInt64(5000)}),
		escrowmq.ReceiveMessagesParams{Group: "live"})
	check(err)
	fmt.Print("receive")
	acknowledged := &escrowmq.AckInput{}
	for _, message := range received.Messages {
		fmt.Print(" ", message.Payload.Value)
		acknowledged.Entries = append(acknowledged.Entries,
			escrowmq.AckEntry{ReceiptHandle: message.ReceiptHandle})
	}
	fmt.Println()

	settled, err := client.AckMessages(ctx, acknowledged, escrowmq.AckMessagesParams{Group: "live"})
	check(err)
	fmt.Println("ack", settled.Response.Accepted)

	_, err = begin(ctx, client, "live-3")
	check(err)
	_, err = client.RollbackTransaction(ctx, escrowmq.OptRollbackInput{},
		escrowmq.RollbackTransactionParams{TransactionID: "live-3"})
	check(err)
	_, err = client.CommitTransaction(ctx,
		escrowmq.CommitTransactionParams{TransactionID: "live-3"})
	var problem *escrowmq.ProblemStatusCode
	if !errors.As(err, &problem) {
		log.Fatal("a rolled back transaction was committed: ", err)
	}
	fmt.Println("refused", problem.StatusCode, problem.Response.Code)
}

func begin(ctx context.Context, client *escrowmq.Client, id string) (*escrowmq.Transaction, error) {
	return client.BeginTransaction(ctx, &escrowmq.BeginInput{
		TransactionID: escrowmq.NewOptString(id),
		ProducerGroup: "live",
		Messages: []escrowmq.TransactionMessageInput{
			{Topic: "live", Message: escrowmq.MessageInput{JSON: jx.Raw(`{"n":1}`)}},
		},
	}, escrowmq.BeginTransactionParams{})
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
