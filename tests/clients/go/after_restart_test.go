//go:build afterrestart

package clients

import "testing"

// The broker was restarted since TestBeforeRestart… ran with the same CLIENTS_RUN.
func TestAfterRestartNothingIsRedelivered(t *testing.T) {
	topic := unique("restart")
	until(t, "route of "+topic, func() bool { return routed(topic) })
	in := &inbox{}
	push(t, unique("restart"), topic, "*", into(in))
	wanted := seed(t, newProducer(t), topic, "t", "after", restartCount)
	in.gets(t, wanted)
}
