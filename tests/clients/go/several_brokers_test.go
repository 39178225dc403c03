//go:build cluster

package clients

import (
	"context"
	"fmt"
	"testing"
)

// A topic on every broker of the cluster, be they SaturnMQ or Apache's, is filled on all of them
// and consumed from all of them.
func TestTopicOnSeveralBrokersIsFilledAndConsumed(t *testing.T) {
	masters := brokers(t)
	if len(masters) < 2 {
		t.Fatalf("one broker only: %v", masters)
	}
	topic, group := createTopic(t, "several", 4), unique("several")
	sender := newProducer(t)
	filled := map[string]int{}
	var bodies []string
	for i := 0; i < 16*len(masters); i++ {
		body := fmt.Sprintf("several-%d", i)
		result, err := sender.SendSync(context.Background(), message(topic, "t", body))
		must(t, err)
		filled[result.MessageQueue.BrokerName]++
		bodies = append(bodies, body)
	}
	if len(filled) != len(masters) {
		t.Fatalf("sent to %v of %v", filled, masters)
	}
	got := &inbox{}
	push(t, group, topic, "*", into(got))
	got.gets(t, bodies)
	t.Logf("messages of each broker: %v", filled)
}
