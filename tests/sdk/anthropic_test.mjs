// The official Anthropic client against tandem serve: TANDEM=BINARY node --test anthropic_test.mjs
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { start } from './server.mjs';

const messages = [{ role: 'user', content: 'write function add' }];
const greedy = { model: 'demo', temperature: 0, max_tokens: 24 };
const weather = {
  name: 'weather',
  description: 'The weather of a city',
  input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};

let server, anthropic;
const client = (s, apiKey) => new Anthropic({ baseURL: s.address, apiKey, maxRetries: 0 });
before(async () => {
  server = await start();
  anthropic = client(server, 'any');
});
after(() => server.stop());

test('a message, whole and streamed, says the same', async () => {
  const whole = await anthropic.messages.create({ ...greedy, messages });
  assert.deepEqual(whole.content.map((b) => b.type), ['text']);
  assert.equal(whole.stop_reason, 'max_tokens');
  const stream = anthropic.messages.stream({ ...greedy, messages });
  let heard = '';
  stream.on('text', (delta) => { heard += delta; });
  const final = await stream.finalMessage();
  assert.equal(heard, whole.content[0].text);
  assert.deepEqual(final.content.map(({ type, text }) => ({ type, text })), whole.content.map(({ type, text }) => ({ type, text })));
  assert.equal(final.stop_reason, whole.stop_reason);
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
});

test('thinking is a block of its own, when it was asked for', async () => {
  const asked = { ...greedy, messages, thinking: { type: 'enabled', budget_tokens: 1024 } };
  const whole = await anthropic.messages.create(asked);
  assert.equal(whole.content[0].type, 'thinking');
  const stream = anthropic.messages.stream(asked);
  let heard = '';
  stream.on('thinking', (delta) => { heard += delta; });
  assert.equal((await stream.finalMessage()).content[0].thinking, whole.content[0].thinking);
  assert.equal(heard, whole.content[0].thinking);
});

test('tools and their results are taken, and tokens counted', async () => {
  const turns = [...messages,
    { role: 'assistant', content: [{ type: 'tool_use', id: 'toolu_1', name: 'weather', input: { city: 'Oslo' } }] },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'toolu_1', content: 'sun' }] }];
  const asked = { model: 'demo', messages: turns, tools: [weather] };
  const { input_tokens } = await anthropic.messages.countTokens(asked);
  const { usage } = await anthropic.messages.create({ ...greedy, ...asked });
  assert.equal(usage.input_tokens + usage.cache_read_input_tokens, input_tokens);
});

test('a stop sequence', async () => {
  const { text } = (await anthropic.messages.create({ ...greedy, messages })).content[0];
  const stop = text.slice(5, 9);
  const stopped = await anthropic.messages.create({ ...greedy, messages, stop_sequences: [stop] });
  assert.equal(stopped.content[0].text, text.slice(0, text.indexOf(stop)));
  assert.deepEqual([stopped.stop_reason, stopped.stop_sequence], ['stop_sequence', stop]);
});

test("errors are the client's classes", async () => {
  const create = (fields) => anthropic.messages.create({ ...greedy, messages, ...fields });
  await assert.rejects(create({ model: 'other' }), Anthropic.NotFoundError);
  await assert.rejects(create({ max_tokens: 0 }), (e) =>
    e instanceof Anthropic.BadRequestError && e.error.error.type === 'invalid_request_error' && /max_tokens/.test(e.message));
  await assert.rejects(create({ tools: [weather], tool_choice: { type: 'any' } }), (e) =>
    e instanceof Anthropic.BadRequestError && /tool_choice/.test(e.message));
});

test('keys and a server with too much to do', async () => {
  const small = await start('--max-running', '1', '--max-queue', '1', '--api-key', 'secret');
  try {
    await assert.rejects(client(small, 'wrong').messages.create({ ...greedy, messages }), Anthropic.AuthenticationError);
    const ask = () => client(small, 'secret').messages.create({ ...greedy, messages, max_tokens: 400, ignore_eos: true });
    const outcomes = await Promise.allSettled(Array.from({ length: 8 }, ask));
    const refused = outcomes.filter((o) => o.status === 'rejected').map((o) => o.reason);
    assert.ok(refused.length > 0 && refused.length < 8, `${refused.length} refused`);
    for (const e of refused) assert.deepEqual([e.status, e.error.error.type], [529, 'overloaded_error']);
  } finally {
    await small.stop();
  }
});
