package clients

import (
	"context"
	"fmt"
	"testing"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// decision ends a transaction as the first byte of its body says: c commits, r rolls back, C and R
// do so when the broker asks.
type decision struct{}

func (decision) ExecuteLocalTransaction(one *primitive.Message) primitive.LocalTransactionState {
	return state(one.Body[0], 'c', 'r')
}

func (decision) CheckLocalTransaction(one *primitive.MessageExt) primitive.LocalTransactionState {
	return state(one.Body[0], 'C', 'R')
}

func state(kind, commit, rollback byte) primitive.LocalTransactionState {
	switch kind {
	case commit:
		return primitive.CommitMessageState
	case rollback:
		return primitive.RollbackMessageState
	default:
		return primitive.UnkonwnState
	}
}

func newTransactionProducer(t *testing.T, group string) (rocketmq.TransactionProducer, func()) {
	t.Helper()
	sender, err := rocketmq.NewTransactionProducer(decision{}, producer.WithNsResolver(resolver()),
		producer.WithGroupName(group), producer.WithInstanceName(instance()))
	must(t, err)
	must(t, sender.Start())
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			_ = sender.Shutdown()
		}
	}
	t.Cleanup(stop)
	return sender, stop
}

func sendInTransaction(t *testing.T, sender rocketmq.TransactionProducer, topic, body string) {
	t.Helper()
	_, err := sender.SendMessageInTransaction(context.Background(), message(topic, "t", body))
	must(t, err)
}

func TestOnlyCommittedTransactionsAreDelivered(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "transaction", 1)
	sender, _ := newTransactionProducer(t, unique("transaction"))
	var wanted []string
	for i := 0; i < 8; i++ {
		kind := []string{"c", "r", "C", "R"}[i%4]
		body := fmt.Sprintf("%s-%d", kind, i)
		sendInTransaction(t, sender, topic, body)
		if kind == "c" || kind == "C" {
			wanted = append(wanted, body)
		}
	}
	in := &inbox{}
	push(t, unique("transaction"), topic, "*", into(in))
	in.gets(t, wanted)
	wanted = append(wanted, seed(t, newProducer(t), topic, "t", "end", 1)...)
	in.gets(t, wanted)
}

func TestAnotherProducerOfTheGroupIsAskedAboutATransaction(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "heir", 1)
	first, stop := newTransactionProducer(t, unique("heir"))
	sendInTransaction(t, first, topic, "C-left")
	stop()
	second, _ := newTransactionProducer(t, unique("heir"))
	// A producer of this client registers with the brokers of the topics it knows.
	sendInTransaction(t, second, topic, "r-known")
	in := &inbox{}
	push(t, unique("heir"), topic, "*", into(in))
	in.gets(t, []string{"C-left"})
}
