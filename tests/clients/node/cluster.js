'use strict';

// Where the broker is, and clients that end with their test. ROCKETMQ_NAMESRV names the name
// server (default 127.0.0.1:9876), CLIENTS_RUN ties the runs before and after a restart together.

const net = require('node:net');
const { Consumer, Producer } = require('ali-ons');

const nameServer = process.env.ROCKETMQ_NAMESRV || '127.0.0.1:9876';
const run = process.env.CLIENTS_RUN || Date.now().toString(36);
// Long enough for a busy two-core machine, short enough to notice a stuck broker.
const LIMIT_MS = 40_000;
let instances = 0;

/** A topic or group name that belongs to this run only. */
function unique(what) {
  return `${what}-node-${run}`;
}

/** Resolves once the condition holds; rejects when that takes too long. */
async function until(what, condition) {
  const end = Date.now() + LIMIT_MS;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`not within ${LIMIT_MS} ms: ${what}`);
    await new Promise(resolve => setTimeout(resolve, 20));
  }
}

/** One remoting request; resolves to { code, remark, fields, body }. */
function request(address, code, extFields) {
  const [ host, port ] = address.split(':');
  const header = Buffer.from(JSON.stringify({
    code, language: 'JAVA', version: 121, opaque: 1, flag: 0, extFields,
  }));
  const frame = Buffer.alloc(8 + header.length);
  frame.writeUInt32BE(4 + header.length, 0);
  frame.writeUInt32BE(header.length, 4);
  header.copy(frame, 8);
  return new Promise((resolve, reject) => {
    let received = Buffer.alloc(0);
    const socket = net.connect(Number(port), host, () => socket.write(frame));
    socket.setTimeout(5_000, () => socket.destroy(new Error(`no answer to request ${code}`)));
    socket.on('error', reject);
    socket.on('end', () => reject(new Error(`request ${code}: connection closed`)));
    socket.on('data', chunk => {
      received = Buffer.concat([ received, chunk ]);
      if (received.length < 8 || received.length < 4 + received.readUInt32BE(0)) return;
      const bodyStart = 8 + (received.readUInt32BE(4) & 0xffffff);
      const answer = JSON.parse(received.subarray(8, bodyStart).toString());
      socket.end();
      resolve({
        code: answer.code,
        remark: answer.remark,
        fields: answer.extFields || {},
        body: received.subarray(bodyStart, 4 + received.readUInt32BE(0)).toString(),
      });
    });
  });
}

async function routed(topic) {
  return (await request(nameServer, 105, { topic })).code === 0;
}

/** The master brokers' addresses. The answer has unquoted map keys: `0:"host:port"`. */
async function brokers() {
  const { body } = await request(nameServer, 106, {});
  const found = [ ...body.matchAll(/[{,]"?0"?:"([^"]+)"/g) ].map(match => match[1]);
  if (found.length === 0) throw new Error(`no master broker in ${body}`);
  return found;
}

/** Creates a topic on every broker and waits for its route; the client cannot create one. */
async function createTopic(topic, queues) {
  for (const broker of await brokers()) {
    const answer = await request(broker, 17, {
      topic, defaultTopic: 'TBW102', readQueueNums: queues, writeQueueNums: queues, perm: 6,
      topicFilterType: 'SINGLE_TAG', topicSysFlag: 0, order: false,
    });
    if (answer.code !== 0) throw new Error(`create ${topic}: ${answer.code} ${answer.remark}`);
  }
  await until(`route of ${topic}`, () => routed(topic));
  return topic;
}

function options(more) {
  return {
    // Only asked for addresses when no name server is given.
    httpclient: {},
    // Its warnings tell of nothing but a new route.
    logger: { debug() {}, info() {}, warn() {}, error: console.error },
    nameSrv: nameServer,
    instanceName: unique(`i${instances++}`),
    pollNameServerInteval: 1_000,
    heartbeatBrokerInterval: 1_000,
    rebalanceInterval: 1_000,
    persistConsumerOffsetInterval: 500,
    sendMsgTimeout: 10_000,
    ...more,
  };
}

/** A producer that is closed when the test ends. */
async function producer(t) {
  const client = new Producer(options({ producerGroup: unique('producer') }));
  t.after(() => client.close());
  await client.ready();
  return client;
}

/** A consumer whose messages go to the returned inbox; handle may ask for a retry. */
async function consume(t, group, topic, expression, handle = async () => {}, more = {}) {
  const client = new Consumer(options({ consumerGroup: group, ...more }));
  const inbox = { messages: [], bodies: () => inbox.messages.map(m => m.body.toString()) };
  let open = true;
  inbox.close = async () => {
    if (open) await client.close();
    open = false;
  };
  t.after(inbox.close);
  client.on('error', error => { inbox.error = error; });
  client.subscribe(topic, expression, async message => {
    inbox.messages.push(message);
    return await handle(message);
  });
  await client.ready();
  return inbox;
}

/** The client's timers survive its close(): end the process once the results are written. */
function endProcess() {
  setTimeout(() => process.exit(), 300).unref();
}

module.exports = {
  ACTION_RETRY: Consumer.ACTION_RETRY,
  brokers, consume, createTopic, endProcess, producer, request, routed, unique, until,
};
