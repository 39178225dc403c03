package clients

import "testing"

const restartCount = 30

// The first half of TestAfterRestart…, which runs in a later process.
func TestBeforeRestartMessagesAreConsumed(t *testing.T) {
	t.Parallel()
	topic := createTopic(t, "restart", 4)
	sender := newProducer(t)
	in := &inbox{}
	stop := push(t, unique("restart"), topic, "*", into(in))
	in.gets(t, seed(t, sender, topic, "t", "before", restartCount))
	awaitCommitted(t, topic, unique("restart"), 4, restartCount)
	stop()
}
