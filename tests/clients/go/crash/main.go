// Sends or consumes for scripts/crash-loop, with Apache's client, until its input is closed.
//
//	crash send SEED     sends to the topics Crash0 to Crash2 and prints what was acknowledged
//	crash consume GROUP consumes these topics from their first message and prints every message
//
// Each line is: topic, queue, queue offset, offset message id, body up to its second "-".
// ROCKETMQ_NAMESRV is the name server, host:port.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	topics  = 3
	senders = 16
)

var output sync.Mutex

func report(topic string, queue int, offset int64, id string, body []byte) {
	parts := bytes.SplitN(body, []byte("-"), 3)
	if len(parts) < 3 {
		parts = [][]byte{[]byte("?"), []byte("?")}
	}
	output.Lock()
	defer output.Unlock()
	fmt.Printf("%s %d %d %s %s-%s\n", topic, queue, offset, id, parts[0], parts[1])
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(1)
	}
}

func send(seed string) {
	sender, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{os.Getenv("ROCKETMQ_NAMESRV")}),
		producer.WithGroupName("crash-senders"),
		// A send that is tried again may be stored twice.
		producer.WithRetry(0),
	)
	fail(err)
	fail(sender.Start())
	for number := 0; number < senders; number++ {
		go func(number int) {
			choose := rand.New(rand.NewSource(int64(number)))
			failures := 0
			for count := 0; failures < 3; count++ {
				topic := fmt.Sprintf("Crash%d", choose.Intn(topics))
				rest := make([]byte, []int{0, 10, 100, 1000, 5000}[choose.Intn(5)])
				body := fmt.Appendf(nil, "%s.%d-%d-", seed, number, count)
				message := primitive.NewMessage(topic, append(body, rest...))
				message.WithKeys([]string{fmt.Sprintf("%s.%d.%d", seed, number, count)})
				result, err := sender.SendSync(context.Background(), message)
				// Without an answer nothing was promised.
				if err != nil {
					failures++
				} else if result.Status == primitive.SendOK {
					queue := result.MessageQueue
					report(queue.Topic, queue.QueueId, result.QueueOffset, result.OffsetMsgID, body)
				}
			}
		}(number)
	}
}

func consume(group string) {
	reader, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{os.Getenv("ROCKETMQ_NAMESRV")}),
		consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithPullBatchSize(64),
	)
	fail(err)
	take := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			report(message.Topic, message.Queue.QueueId, message.QueueOffset, message.OffsetMsgId,
				message.Body)
		}
		return consumer.ConsumeSuccess, nil
	}
	for topic := 0; topic < topics; topic++ {
		fail(reader.Subscribe(fmt.Sprintf("Crash%d", topic), consumer.MessageSelector{}, take))
	}
	fail(reader.Start())
}

func main() {
	rlog.SetLogLevel("fatal")
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: crash send SEED | crash consume GROUP")
		os.Exit(2)
	}
	switch os.Args[1] {
	case "send":
		send(os.Args[2])
	case "consume":
		consume(os.Args[2])
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	fail(err)
}
