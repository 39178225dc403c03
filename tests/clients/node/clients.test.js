'use strict';

const assert = require('node:assert');
const { after, describe, it } = require('node:test');
const { Message } = require('ali-ons');
const {
  ACTION_RETRY, brokers, consume, createTopic, endProcess, producer, request, routed, unique, until,
} = require('./cluster');

const RESTART_COUNT = 20;

after(endProcess);

async function seed(client, topic, tag, prefix, count) {
  const bodies = [];
  for (let i = 0; i < count; i++) {
    const result = await client.send(new Message(topic, tag, `${prefix}-${i}`));
    assert.strictEqual(result.sendStatus, 'SEND_OK');
    bodies.push(`${prefix}-${i}`);
  }
  return bodies;
}

/** Waits for as many messages as wanted and compares them in any order. */
async function gets(inbox, wanted) {
  await until(`${wanted.length} messages`, () => inbox.messages.length >= wanted.length);
  assert.deepStrictEqual(inbox.bodies().sort(), [ ...wanted ].sort());
}

describe('ali-ons', { concurrency: 8 }, () => {
  it('sends to one queue with consecutive offsets', async t => {
    const topic = await createTopic(unique('sync'), 1);
    const client = await producer(t);
    for (let i = 0; i < 5; i++) {
      const result = await client.send(new Message(topic, 'tag', 'sync'));
      assert.strictEqual(result.sendStatus, 'SEND_OK');
      assert.strictEqual(Number(result.queueOffset), i);
      assert.strictEqual(Number(result.messageQueue.queueId), 0);
      assert.ok(result.msgId);
    }
  });

  it('gets every message once', async t => {
    const topic = await createTopic(unique('push'), 4);
    const client = await producer(t);
    const wanted = await seed(client, topic, 'tag', 'before', 20);
    const inbox = await consume(t, unique('push'), topic, '*');
    await gets(inbox, wanted);
    wanted.push(...await seed(client, topic, 'tag', 'after', 20));
    await gets(inbox, wanted);
  });

  it('selects messages by tag', async t => {
    const topic = await createTopic(unique('tags'), 2);
    const client = await producer(t);
    const wanted = [];
    for (const tag of [ 'red', 'blue', 'green', 'reddish' ]) {
      const bodies = await seed(client, topic, tag, tag, 5);
      if (tag === 'red' || tag === 'green') wanted.push(...bodies);
    }
    await gets(await consume(t, unique('tags'), topic, 'red || green'), wanted);
  });

  it('delivers keys, properties and a compressed body unchanged', async t => {
    const topic = await createTopic(unique('properties'), 1);
    const client = await producer(t);
    const body = 'all work and no play makes a dull message. '.repeat(500);
    const sent = new Message(topic, 'Ünïcode', body);
    sent.keys = [ 'one', 'two' ];
    sent.properties.colour = 'grün';
    await client.send(sent);
    const inbox = await consume(t, unique('properties'), topic, '*');
    await gets(inbox, [ body ]);
    const got = inbox.messages[0];
    assert.strictEqual(got.tags, 'Ünïcode');
    assert.strictEqual(got.keys, 'one two');
    assert.strictEqual(got.properties.colour, 'grün');
    assert.ok(got.storeSize < body.length / 10, `stored in ${got.storeSize} bytes`);
  });

  it('gives every broadcast member all messages', async t => {
    const topic = await createTopic(unique('broadcast'), 2);
    const group = unique('broadcast');
    const all = { isBroadcast: true, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' };
    const first = await consume(t, group, topic, '*', undefined, all);
    const second = await consume(t, group, topic, '*', undefined, all);
    const wanted = await seed(await producer(t), topic, 'tag', 'to-all', 20);
    await gets(first, wanted);
    await gets(second, wanted);
  });

  it('gets a refused message again', async t => {
    const topic = await createTopic(unique('retry'), 1);
    const group = unique('retry');
    // Routed before the consumer starts, which would find it late.
    await createTopic(`%RETRY%${group}`, 1);
    let refused = 0;
    const inbox = await consume(t, group, topic, '*', async () => {
      return refused++ === 0 ? ACTION_RETRY : undefined;
    });
    await seed(await producer(t), topic, 'tag', 'again', 1);
    await gets(inbox, [ 'again-0', 'again-0' ]);
    assert.deepStrictEqual(inbox.messages.map(m => m.reconsumeTimes), [ 0, 1 ]);
  });

  it('before restart: consumes and commits', async t => {
    const topic = await createTopic(unique('restart'), 2);
    const group = unique('restart');
    const inbox = await consume(t, group, topic, '*');
    await gets(inbox, await seed(await producer(t), topic, 'tag', 'before', RESTART_COUNT));
    const [ broker ] = await brokers();
    await until('committed offsets', async () => {
      let sum = 0;
      for (let queueId = 0; queueId < 2; queueId++) {
        const { fields } = await request(broker, 14, { topic, consumerGroup: group, queueId });
        sum += Number(fields.offset || 0);
      }
      return sum === RESTART_COUNT;
    });
    await inbox.close();
  });
});
