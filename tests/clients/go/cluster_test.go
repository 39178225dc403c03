// Package clients runs Apache's Go client against a broker: ROCKETMQ_NAMESRV names its name
// server (default 127.0.0.1:9876), CLIENTS_RUN tells the runs before and after a restart that
// they belong together.
package clients

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// Long enough for a busy two-core machine, short enough to notice a stuck broker.
const limit = 40 * time.Second

var (
	nameServer = setting("ROCKETMQ_NAMESRV", "127.0.0.1:9876")
	run        = setting("CLIENTS_RUN", fmt.Sprint(time.Now().UnixMilli()))
	instances  atomic.Int64
)

func setting(name, fallback string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return fallback
}

func TestMain(m *testing.M) {
	rlog.SetLogLevel("fatal")
	os.Exit(m.Run())
}

// unique is a topic or group name that belongs to this run only.
func unique(what string) string {
	return what + "-go-" + run
}

func instance() string {
	return fmt.Sprintf("%s-%d", unique("i"), instances.Add(1))
}

func resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{nameServer})
}

// until returns once the condition holds, and fails the test when that takes too long.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	end := time.Now().Add(limit)
	for !condition() {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// request sends one remoting request and returns the code and the body of the answer.
func request(address string, code int, fields map[string]string) (int, string, error) {
	answer, _, body, err := exchange(address, code, fields)
	return answer, body, err
}

// exchange is request that returns the header fields of the answer as well.
func exchange(address string, code int, fields map[string]string) (
	int, map[string]string, string, error) {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return 0, nil, "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return 0, nil, "", err
	}
	header, err := json.Marshal(map[string]any{"code": code, "language": "GO", "version": 317,
		"opaque": 1, "flag": 0, "serializeTypeCurrentRPC": "JSON", "extFields": fields})
	if err != nil {
		return 0, nil, "", err
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(header)))
	if _, err := conn.Write(append(frame, header...)); err != nil {
		return 0, nil, "", err
	}
	var lengths [8]byte
	if _, err := io.ReadFull(conn, lengths[:]); err != nil {
		return 0, nil, "", err
	}
	rest := make([]byte, binary.BigEndian.Uint32(lengths[:4])-4)
	if _, err := io.ReadFull(conn, rest); err != nil {
		return 0, nil, "", err
	}
	size := binary.BigEndian.Uint32(lengths[4:]) & 0xffffff
	var answer struct {
		Code      int
		ExtFields map[string]string
	}
	if err := json.Unmarshal(rest[:size], &answer); err != nil {
		return 0, nil, "", err
	}
	return answer.Code, answer.ExtFields, string(rest[size:]), nil
}

// masterAddress finds `0:"host:port"`: the broker writes map keys that are numbers unquoted.
var masterAddress = regexp.MustCompile(`[{,]"?0"?:"([^"]+)"`)

// brokers returns the addresses of the master brokers.
func brokers(t *testing.T) []string {
	t.Helper()
	code, body, err := request(nameServer, 106, nil)
	must(t, err)
	var found []string
	for _, match := range masterAddress.FindAllStringSubmatch(body, -1) {
		found = append(found, match[1])
	}
	if code != 0 || len(found) == 0 {
		t.Fatalf("cluster info: code %d, %s", code, body)
	}
	return found
}

func routed(topic string) bool {
	code, _, err := request(nameServer, 105, map[string]string{"topic": topic})
	return err == nil && code == 0
}

// createTopic creates a topic and waits for its route: consumers refuse to start without it.
func createTopic(t *testing.T, what string, queues int) string {
	t.Helper()
	topic := unique(what)
	createNamedTopic(t, topic, queues)
	return topic
}

func createNamedTopic(t *testing.T, topic string, queues int) {
	t.Helper()
	client, err := admin.NewAdmin(admin.WithResolver(resolver()))
	must(t, err)
	defer client.Close()
	for _, broker := range brokers(t) {
		must(t, client.CreateTopic(context.Background(), admin.WithTopicCreate(topic),
			admin.WithBrokerAddrCreate(broker), admin.WithReadQueueNums(queues),
			admin.WithWriteQueueNums(queues)))
	}
	until(t, "route of "+topic, func() bool { return routed(topic) })
}

func newProducer(t *testing.T, options ...producer.Option) rocketmq.Producer {
	t.Helper()
	all := append([]producer.Option{producer.WithNsResolver(resolver()),
		producer.WithGroupName(unique("producer")), producer.WithInstanceName(instance()),
		producer.WithSendMsgTimeout(10 * time.Second), producer.WithRetry(2)}, options...)
	started, err := rocketmq.NewProducer(all...)
	must(t, err)
	must(t, started.Start())
	t.Cleanup(func() { _ = started.Shutdown() })
	return started
}

func message(topic, tag, body string) *primitive.Message {
	return primitive.NewMessage(topic, []byte(body)).WithTag(tag)
}

// seed sends messages named prefix-0, prefix-1, … and returns their bodies.
func seed(t *testing.T, sender rocketmq.Producer, topic, tag, prefix string, count int) []string {
	t.Helper()
	var bodies []string
	for i := 0; i < count; i++ {
		body := fmt.Sprintf("%s-%d", prefix, i)
		result, err := sender.SendSync(context.Background(), message(topic, tag, body))
		must(t, err)
		if result.Status != primitive.SendOK {
			t.Fatalf("send: %v", result)
		}
		bodies = append(bodies, body)
	}
	return bodies
}

// inbox holds the messages a consumer got, in order of arrival.
type inbox struct {
	lock     sync.Mutex
	messages []*primitive.MessageExt
}

func (in *inbox) add(messages ...*primitive.MessageExt) {
	in.lock.Lock()
	defer in.lock.Unlock()
	in.messages = append(in.messages, messages...)
}

func (in *inbox) all() []*primitive.MessageExt {
	in.lock.Lock()
	defer in.lock.Unlock()
	return append([]*primitive.MessageExt(nil), in.messages...)
}

func (in *inbox) bodies() []string {
	var bodies []string
	for _, one := range in.all() {
		bodies = append(bodies, string(one.Body))
	}
	return bodies
}

// gets waits until the inbox has as many messages as wanted and compares them in any order.
func (in *inbox) gets(t *testing.T, wanted []string) {
	t.Helper()
	until(t, fmt.Sprintf("%d messages", len(wanted)), func() bool {
		return len(in.all()) >= len(wanted)
	})
	sameSet(t, in.bodies(), wanted)
}

func sameSet(t *testing.T, got, wanted []string) {
	t.Helper()
	a, b := append([]string(nil), got...), append([]string(nil), wanted...)
	sort.Strings(a)
	sort.Strings(b)
	if strings.Join(a, "\n") != strings.Join(b, "\n") {
		t.Fatalf("got %d messages %v\nwanted %d %v", len(a), a, len(b), b)
	}
}

type listener func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func into(in *inbox) listener {
	return func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		in.add(messages...)
		return consumer.ConsumeSuccess, nil
	}
}

// push starts a push consumer; stop it earlier than the end of the test with the result.
func push(t *testing.T, group, topic, tags string, consume listener,
	options ...consumer.Option) func() {
	t.Helper()
	all := append([]consumer.Option{consumer.WithNsResolver(resolver()),
		consumer.WithGroupName(group), consumer.WithInstance(instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}, options...)
	started, err := rocketmq.NewPushConsumer(all...)
	must(t, err)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: tags}
	must(t, started.Subscribe(topic, selector, consume))
	must(t, started.Start())
	var once sync.Once
	stop := func() { once.Do(func() { _ = started.Shutdown() }) }
	t.Cleanup(stop)
	return stop
}

// knownGroup is a group whose retry topic is routed already: a consumer that starts earlier
// learns of it only in its next round, half a minute later.
func knownGroup(t *testing.T, what string) string {
	t.Helper()
	group := unique(what)
	createNamedTopic(t, "%RETRY%"+group, 1)
	return group
}

// awaitCommitted waits until the broker has stored consumed offsets that add up to a count.
func awaitCommitted(t *testing.T, topic, group string, queues, count int) {
	t.Helper()
	broker := brokers(t)[0]
	until(t, "committed offsets of "+group, func() bool {
		sum := 0
		for queue := 0; queue < queues; queue++ {
			sum += committed(broker, topic, group, queue)
		}
		return sum == count
	})
}

func committed(broker, topic, group string, queue int) int {
	_, fields, _, err := exchange(broker, 14, map[string]string{"topic": topic,
		"consumerGroup": group, "queueId": fmt.Sprint(queue)})
	if err != nil {
		return 0
	}
	offset, err := strconv.Atoi(fields["offset"])
	if err != nil {
		return 0
	}
	return offset
}
