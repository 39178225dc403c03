package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// brokerName returns the name of one broker that has the topic.
func brokerName(t *testing.T, topic string) string {
	t.Helper()
	_, body, err := request(nameServer, 105, map[string]string{"topic": topic})
	must(t, err)
	var route struct{ QueueDatas []struct{ BrokerName string } }
	// The broker addresses of the answer have unquoted keys: cut them off.
	quoted := masterAddress.ReplaceAllString(body, `{"0":"$1"`)
	if err := json.Unmarshal([]byte(quoted), &route); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return route.QueueDatas[0].BrokerName
}

func TestConcurrentConsumerGetsEveryMessageOnce(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "concurrent", 4)
	sender := newProducer(t)
	wanted := seed(t, sender, topic, "t", "before", 60)
	in := &inbox{}
	push(t, unique("concurrent"), topic, "*", into(in))
	in.gets(t, wanted)
	wanted = append(wanted, seed(t, sender, topic, "t", "after", 60)...)
	in.gets(t, wanted)
}

func TestOrderlyConsumerSeesEachQueueInOrder(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "orderly", 4)
	sender := newProducer(t, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	for i := 0; i < 80; i++ {
		one := message(topic, "t", strconv.Itoa(i)).WithShardingKey(fmt.Sprint("key-", i%7))
		_, err := sender.SendSync(context.Background(), one)
		must(t, err)
	}
	in := &inbox{}
	push(t, unique("orderly"), topic, "*", into(in), consumer.WithConsumerOrder(true))
	until(t, "80 messages", func() bool { return len(in.all()) >= 80 })
	last := map[int]int64{}
	for _, one := range in.all() {
		previous, seen := last[one.Queue.QueueId]
		if seen && one.QueueOffset != previous+1 || !seen && one.QueueOffset != 0 {
			t.Fatalf("queue %d: offset %d after %d", one.Queue.QueueId, one.QueueOffset, previous)
		}
		last[one.Queue.QueueId] = one.QueueOffset
	}
}

func TestTagExpressionSelectsMessages(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "tags", 2)
	sender := newProducer(t)
	var wanted []string
	for _, tag := range []string{"red", "blue", "green", "reddish"} {
		bodies := seed(t, sender, topic, tag, tag, 10)
		if tag == "red" || tag == "green" {
			wanted = append(wanted, bodies...)
		}
	}
	in := &inbox{}
	push(t, unique("tags"), topic, "red || green", into(in))
	in.gets(t, wanted)
}

func TestEveryBroadcastMemberGetsAllMessages(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "broadcast", 4)
	group := unique("broadcast")
	inboxes := []*inbox{{}, {}}
	for _, in := range inboxes {
		push(t, group, topic, "*", into(in), consumer.WithConsumerModel(consumer.BroadCasting))
	}
	wanted := seed(t, newProducer(t), topic, "t", "to-all", 40)
	for _, in := range inboxes {
		in.gets(t, wanted)
	}
}

func TestFailingMessageIsRetriedThenDeadLettered(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "retry", 1)
	group := knownGroup(t, "retry")
	var lock sync.Mutex
	var times []int32
	push(t, group, topic, "*", func(_ context.Context, messages ...*primitive.MessageExt) (
		consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		times = append(times, messages[0].ReconsumeTimes)
		return consumer.ConsumeRetryLater, nil
	}, consumer.WithMaxReconsumeTimes(2))
	seed(t, newProducer(t), topic, "t", "poison", 1)
	dead := "%DLQ%" + group
	until(t, "dead letter topic", func() bool {
		lock.Lock()
		defer lock.Unlock()
		return len(times) >= 3 && routed(dead)
	})
	// 4.x makes it write-only; a user makes it readable before looking.
	createNamedTopic(t, dead, 1)
	in := &inbox{}
	push(t, unique("dead-letters"), dead, "*", into(in))
	in.gets(t, []string{"poison-0"})
	lock.Lock()
	defer lock.Unlock()
	if fmt.Sprint(times) != "[0 1 2]" {
		t.Errorf("delivered with reconsume times %v", times)
	}
}

func TestDelayedMessageArrivesNotEarly(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "delay", 1)
	in := &inbox{}
	arrived := make(chan time.Time, 8)
	push(t, unique("delay"), topic, "*", func(_ context.Context, messages ...*primitive.MessageExt) (
		consumer.ConsumeResult, error) {
		in.add(messages...)
		arrived <- time.Now()
		return consumer.ConsumeSuccess, nil
	})
	producer := newProducer(t)
	var wanted []string
	var all []time.Duration
	// Again if a machine that stood still may have delayed it.
	for len(all) == 0 || all[len(all)-1] > 7*time.Second && len(all) < 4 {
		wanted = append(wanted, fmt.Sprintf("delayed-%d", len(all)))
		sent := time.Now()
		delayed := message(topic, "t", wanted[len(all)]).WithDelayTimeLevel(2)
		_, err := producer.SendSync(context.Background(), delayed)
		must(t, err)
		in.gets(t, wanted)
		took := (<-arrived).Sub(sent)
		if took < 2*time.Second {
			t.Errorf("level 2 (2 s) took %v", took)
		}
		all = append(all, took)
	}
	if all[len(all)-1] > 7*time.Second {
		t.Errorf("level 2 (2 s) took %v", all)
	}
}

func TestTwoMembersShareTheQueues(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "share", 8)
	group := unique("share")
	inboxes := []*inbox{{}, {}}
	for _, in := range inboxes {
		push(t, group, topic, "*", into(in))
	}
	sender := newProducer(t)
	sent := 0
	until(t, "both members get messages", func() bool {
		seed(t, sender, topic, "t", fmt.Sprint("round-", sent), 8)
		sent += 8
		return len(inboxes[0].all()) > 0 && len(inboxes[1].all()) > 0
	})
	until(t, "every message", func() bool {
		got := map[string]bool{}
		for _, body := range append(inboxes[0].bodies(), inboxes[1].bodies()...) {
			got[body] = true
		}
		return len(got) == sent
	})
}

func newPull(t *testing.T, group, topic string) rocketmq.PullConsumer {
	t.Helper()
	puller, err := rocketmq.NewPullConsumer(consumer.WithNsResolver(resolver()),
		consumer.WithGroupName(group), consumer.WithInstance(instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	must(t, err)
	must(t, puller.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	must(t, puller.Start())
	t.Cleanup(func() { _ = puller.Shutdown() })
	return puller
}

func TestPullFromReadsAtAnOffset(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "pull", 1)
	sent := seed(t, newProducer(t), topic, "t", "pull", 20)
	puller := newPull(t, unique("pull"), topic)
	queue := &primitive.MessageQueue{Topic: topic, BrokerName: brokerName(t, topic), QueueId: 0}
	var got []string
	until(t, "10 messages from offset 5", func() bool {
		result, err := puller.PullFrom(context.Background(), queue, 5, 10)
		if err != nil || result.Status != primitive.PullFound {
			return false
		}
		got = nil
		for _, one := range result.GetMessageExts() {
			got = append(got, string(one.Body))
		}
		return len(got) == 10
	})
	sameSet(t, got, sent[5:15])
	offset, err := puller.OffsetForTimestamp(queue, time.Now().Add(-time.Hour).UnixMilli())
	must(t, err)
	if offset != 0 {
		t.Errorf("offset of an hour ago: %d", offset)
	}
}

func TestPolledMessagesAreAcknowledged(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "poll", 2)
	sent := seed(t, newProducer(t), topic, "t", "poll", 20)
	puller := newPull(t, unique("poll"), topic)
	in := &inbox{}
	until(t, "20 polled messages", func() bool {
		batch, err := puller.Poll(context.Background(), 200*time.Millisecond)
		if err == nil {
			in.add(batch.GetMsgList()...)
			puller.ACK(context.Background(), batch, consumer.ConsumeSuccess)
		}
		return len(in.all()) >= 20
	})
	sameSet(t, in.bodies(), sent)
}
