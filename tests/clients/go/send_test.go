package clients

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func TestSyncSendsToOneQueueGetConsecutiveOffsets(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "sync", 1)
	sender := newProducer(t)
	for i := int64(0); i < 5; i++ {
		result, err := sender.SendSync(context.Background(), message(topic, "t", "sync"))
		must(t, err)
		if result.Status != primitive.SendOK || result.QueueOffset != i || result.MsgID == "" {
			t.Fatalf("send %d: %v", i, result)
		}
	}
}

func TestAsyncSendsAllCallBackAndArrive(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "async", 4)
	sender := newProducer(t)
	var all sync.WaitGroup
	var lock sync.Mutex
	var failures, wanted []string
	for i := 0; i < 100; i++ {
		body := fmt.Sprintf("async-%d", i)
		wanted = append(wanted, body)
		all.Add(1)
		must(t, sender.SendAsync(context.Background(),
			func(_ context.Context, result *primitive.SendResult, err error) {
				defer all.Done()
				if err != nil || result.Status != primitive.SendOK {
					lock.Lock()
					failures = append(failures, fmt.Sprintf("%v: %v", result, err))
					lock.Unlock()
				}
			}, message(topic, "t", body)))
	}
	all.Wait()
	if len(failures) > 0 {
		t.Fatal(failures)
	}
	in := &inbox{}
	push(t, unique("async"), topic, "*", into(in))
	in.gets(t, wanted)
}

func TestOneWaySendsArrive(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "oneway", 2)
	sender := newProducer(t)
	var wanted []string
	for i := 0; i < 30; i++ {
		body := fmt.Sprintf("oneway-%d", i)
		wanted = append(wanted, body)
		must(t, sender.SendOneWay(context.Background(), message(topic, "t", body)))
	}
	in := &inbox{}
	push(t, unique("oneway"), topic, "*", into(in))
	in.gets(t, wanted)
}

func TestBatchArrivesAsSeparateMessages(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "batch", 2)
	sender := newProducer(t)
	var batch []*primitive.Message
	var wanted []string
	for i := 0; i < 20; i++ {
		body := fmt.Sprintf("batch-%d", i)
		wanted = append(wanted, body)
		one := message(topic, "t", body)
		one.WithProperty("number", fmt.Sprint(i))
		batch = append(batch, one)
	}
	result, err := sender.SendSync(context.Background(), batch...)
	must(t, err)
	if result.Status != primitive.SendOK {
		t.Fatalf("%v", result)
	}
	in := &inbox{}
	push(t, unique("batch"), topic, "*", into(in))
	in.gets(t, wanted)
	for _, one := range in.all() {
		if "batch-"+one.GetProperty("number") != string(one.Body) {
			t.Errorf("message %s has number %s", one.Body, one.GetProperty("number"))
		}
	}
}

func TestQueueSelectorChoosesTheQueue(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "selector", 4)
	sender := newProducer(t, producer.WithQueueSelector(producer.NewManualQueueSelector()))
	for i := 0; i < 8; i++ {
		one := message(topic, "t", "selected")
		one.Queue = &primitive.MessageQueue{Topic: topic, BrokerName: brokerName(t, topic),
			QueueId: i % 4}
		result, err := sender.SendSync(context.Background(), one)
		must(t, err)
		if result.MessageQueue.QueueId != i%4 || result.QueueOffset != int64(i/4) {
			t.Fatalf("send %d: %v", i, result)
		}
	}
}

func TestLargeBodyPropertiesAndKeysArriveUnchanged(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "compressed", 1)
	sender := newProducer(t)
	body := strings.Repeat("all work and no play makes a dull message. ", 2_500)
	sent := message(topic, "Ünïcode", body).WithKeys([]string{"one", "two"})
	sent.WithProperty("colour", "grün")
	_, err := sender.SendSync(context.Background(), sent)
	must(t, err)
	in := &inbox{}
	push(t, unique("compressed"), topic, "*", into(in))
	until(t, "the message", func() bool { return len(in.all()) == 1 })
	got := in.all()[0]
	if !bytes.Equal(got.Body, []byte(body)) {
		t.Errorf("body of %d bytes became %d bytes", len(body), len(got.Body))
	}
	if int(got.StoreSize) > len(body)/10 {
		t.Errorf("stored in %d bytes: not compressed", got.StoreSize)
	}
	if got.GetTags() != "Ünïcode" || got.GetProperty("colour") != "grün" ||
		strings.TrimSpace(got.GetKeys()) != "one two" {
		t.Errorf("tags %q keys %q properties %v", got.GetTags(), got.GetKeys(), got.GetProperties())
	}
}

func TestFirstSendCreatesTheTopic(t *testing.T) {
	t.Parallel()
	topic := unique("created-by-send")
	seed(t, newProducer(t), topic, "t", "first", 1)
	until(t, "route of "+topic, func() bool { return routed(topic) })
}
