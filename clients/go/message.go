package escrowmq

import (
	"encoding/base64"
	"encoding/json"
	"time"

	"escrowmq.dev/go/api"
)

// A Message is what [Client.Send] and [Tx.Add] take. [JSON], [Text] and [Bytes] make one.
type Message = api.MessageInput

// A Field sets one field of a message.
type Field func(*Message)

// JSON makes a message whose body is the value as JSON.
func JSON(value any, fields ...Field) Message {
	if value == nil {
		value = json.RawMessage("null") // a nil interface would be left out
	}
	return withFields(Message{JSON: value}, fields)
}

// Text makes a message whose body is the text.
func Text(body string, fields ...Field) Message {
	return withFields(Message{Payload: &body}, fields)
}

// Bytes makes a message with any bytes as its body.
func Bytes(body []byte, fields ...Field) Message {
	encoded, encoding := base64.StdEncoding.EncodeToString(body), api.PayloadEncoding("base64")
	return withFields(Message{Payload: &encoded, PayloadEncoding: &encoding}, fields)
}

// Key sets the business key, by which the message can be found.
func Key(key string) Field { return func(m *Message) { m.Key = &key } }

// Keys sets several business keys instead of one; the message can be found by each.
func Keys(keys ...string) Field { return func(m *Message) { m.Keys = &keys } }

// Tag sets the tag, for filters.
func Tag(tag string) Field { return func(m *Message) { m.Tag = &tag } }

// OrderingKey keeps messages with the same ordering key in the order in which they were sent.
func OrderingKey(key string) Field { return func(m *Message) { m.OrderingKey = &key } }

// Property sets one property.
func Property(name, value string) Field {
	return func(m *Message) {
		if m.Properties == nil {
			m.Properties = &api.Texts{}
		}
		(*m.Properties)[name] = value
	}
}

// Delay delivers the message later. It is rounded up to milliseconds; in a transaction it counts
// from the commit.
func Delay(delay time.Duration) Field {
	ms := int64((delay + time.Millisecond - 1) / time.Millisecond)
	return func(m *Message) { m.DelayMs = &ms }
}

// DeliverAt delivers the message at this time.
func DeliverAt(at time.Time) Field {
	at = at.UTC()
	return func(m *Message) { m.DeliverAt = &at }
}

func withFields(message Message, fields []Field) Message {
	for _, set := range fields {
		set(&message)
	}
	return message
}

// Body returns the bytes of a received message.
func Body(message api.ReceivedMessage) ([]byte, error) {
	if message.Payload == nil {
		return nil, nil
	}
	if message.PayloadEncoding != nil && *message.PayloadEncoding == "base64" {
		return base64.StdEncoding.DecodeString(*message.Payload)
	}
	return []byte(*message.Payload), nil
}
