'use strict';

// The broker was restarted since clients.test.js ran with the same CLIENTS_RUN. Run with
// `node --test after-restart.js`: the name keeps it out of the ordinary run.

const assert = require('node:assert');
const { after, it } = require('node:test');
const { Message } = require('ali-ons');
const { consume, endProcess, producer, routed, unique, until } = require('./cluster');

after(endProcess);

it('after restart: nothing is redelivered', async t => {
  const topic = unique('restart');
  await until(`route of ${topic}`, () => routed(topic));
  const inbox = await consume(t, unique('restart'), topic, '*');
  const client = await producer(t);
  const wanted = [];
  for (let i = 0; i < 20; i++) {
    await client.send(new Message(topic, 'tag', `after-${i}`));
    wanted.push(`after-${i}`);
  }
  await until('20 messages', () => inbox.messages.length >= 20);
  assert.deepStrictEqual(inbox.bodies().sort(), wanted.sort());
});
