// The official OpenAI client against tandem serve: TANDEM=BINARY node --test openai_test.mjs
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import OpenAI from 'openai';
import { start } from './server.mjs';

const messages = [{ role: 'user', content: 'write function add' }];
const greedy = { model: 'demo', temperature: 0, max_tokens: 24 };
const weather = {
  type: 'function',
  function: {
    name: 'weather',
    description: 'The weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
};

/** A server, and clients of it that do not try again by themselves. */
async function serve(...options) {
  const server = await start(...options);
  const client = (apiKey = 'any') => new OpenAI({ baseURL: `${server.address}/v1`, apiKey, maxRetries: 0 });
  return { ...server, client };
}

let server, openai;
before(async () => {
  server = await serve();
  openai = server.client();
});
after(() => server.stop());

async function all(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const text = (chunks) => chunks.map((c) => c.choices[0]?.delta?.content ?? c.choices[0]?.text ?? '').join('');

test('models', async () => {
  const ids = [];
  for await (const model of openai.models.list()) ids.push(model.id);
  assert.deepEqual(ids, ['demo']);
  assert.equal((await openai.models.retrieve('demo')).object, 'model');
  await assert.rejects(openai.models.retrieve('other'), OpenAI.NotFoundError);
});

test('a chat, whole and streamed, says the same', async () => {
  const whole = await openai.chat.completions.create({ ...greedy, messages });
  assert.equal(whole.object, 'chat.completion');
  assert.ok(whole.choices[0].message.content.length > 0);
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
  const chunks = await all(await openai.chat.completions.create(
    { ...greedy, messages, stream: true, stream_options: { include_usage: true } }));
  assert.equal(text(chunks), whole.choices[0].message.content);
  assert.equal(new Set(chunks.map((c) => c.id)).size, 1);
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
});

test("the client's stream helper builds the whole answer", async () => {
  const whole = await openai.chat.completions.create({ ...greedy, messages });
  const stream = openai.chat.completions.stream({ ...greedy, messages, stream_options: { include_usage: true } });
  let heard = '';
  stream.on('content', (delta) => { heard += delta; });
  const final = await stream.finalChatCompletion();
  assert.equal((await stream.finalMessage()).content, whole.choices[0].message.content);
  assert.equal(heard, whole.choices[0].message.content);
  assert.equal(final.choices[0].finish_reason, whole.choices[0].finish_reason);
  assert.equal((await stream.totalUsage()).total_tokens, whole.usage.total_tokens);
});

test('tools are taken, and a runner ends with the answer', async () => {
  const asked = { ...greedy, messages, max_tokens: 400 };  // the helper throws where an answer ends for its length
  const answer = await openai.chat.completions.create({ ...asked, tools: [weather], tool_choice: 'auto' });
  assert.equal(answer.choices[0].finish_reason, 'stop');
  const tool = { ...weather, function: { ...weather.function, function: () => 'sun', parse: JSON.parse } };
  for (const stream of [false, true]) {
    const runner = openai.chat.completions.runTools({ ...asked, tools: [tool], stream });
    assert.equal(await runner.finalContent(), answer.choices[0].message.content);
  }
});

test('log-probabilities, whole and streamed', async () => {
  const asked = { ...greedy, messages, logprobs: true, top_logprobs: 3 };
  const whole = await openai.chat.completions.create(asked);
  const entries = whole.choices[0].logprobs.content;
  assert.equal(entries.map((e) => e.token).join(''), whole.choices[0].message.content);
  for (const entry of entries) {
    assert.equal(entry.top_logprobs.length, 3);
    assert.equal(entry.top_logprobs[0].logprob, entry.logprob);
  }
  const final = await openai.chat.completions.stream(asked).finalChatCompletion();
  assert.deepEqual(final.choices[0].logprobs.content, entries);
});

test('stop, seed and n', async () => {
  const prompt = 'def fib(n):';
  const whole = (await openai.completions.create({ ...greedy, prompt })).choices[0].text;
  const stop = whole.slice(5, 9);
  const stopped = (await openai.completions.create({ ...greedy, prompt, stop: [stop] })).choices[0];
  assert.equal(stopped.text, whole.slice(0, whole.indexOf(stop)));
  assert.equal(stopped.finish_reason, 'stop');
  const random = { ...greedy, temperature: 1, messages, seed: 7, n: 3 };
  const texts = async () => (await openai.chat.completions.create(random)).choices.map((c) => c.message.content);
  const first = await texts();
  assert.equal(first.length, 3);
  assert.deepEqual(await texts(), first);
  const final = await openai.chat.completions.stream(random).finalChatCompletion();
  assert.deepEqual(final.choices.map((c) => c.message.content), first);
});

test('completions, whole and streamed', async () => {
  const asked = { ...greedy, prompt: ['def a', 'def b'] };
  const whole = await openai.completions.create(asked);
  assert.deepEqual(whole.choices.map((c) => c.index), [0, 1]);
  const chunks = await all(await openai.completions.create({ ...asked, stream: true }));
  for (const { index, text } of whole.choices) {
    assert.equal(chunks.flatMap((c) => c.choices).filter((c) => c.index === index).map((c) => c.text).join(''), text);
  }
});

test("errors are the client's classes", async () => {
  const create = (fields) => openai.chat.completions.create({ ...greedy, messages, ...fields });
  await assert.rejects(create({ temperature: 3 }), (e) =>
    e instanceof OpenAI.BadRequestError && e.param === 'temperature' && e.code === 'out_of_range' &&
    e.type === 'invalid_request_error');
  await assert.rejects(create({ model: 'other' }), (e) => e instanceof OpenAI.NotFoundError && e.code === 'model_not_found');
  await assert.rejects(create({ stream: true, stop: [''] }), (e) => e instanceof OpenAI.BadRequestError && e.param === 'stop[0]');
  await assert.rejects(openai.completions.create({ ...greedy, prompt: 'word '.repeat(5000) }), (e) =>
    e instanceof OpenAI.BadRequestError && e.code === 'context_length_exceeded');
});

test('keys and a full queue', async () => {
  const small = await serve('--max-running', '1', '--max-queue', '1', '--api-key', 'secret');
  try {
    await assert.rejects(small.client('wrong').models.list(), (e) =>
      e instanceof OpenAI.AuthenticationError && e.code === 'invalid_api_key');
    const client = small.client('secret');
    const ask = () => client.completions.create({ model: 'demo', prompt: 'a', max_tokens: 400, ignore_eos: true });
    const outcomes = await Promise.allSettled(Array.from({ length: 8 }, ask));
    const refused = outcomes.filter((o) => o.status === 'rejected').map((o) => o.reason);
    assert.ok(refused.length > 0 && refused.length < 8, `${refused.length} refused`);
    for (const e of refused) assert.ok(e instanceof OpenAI.RateLimitError, String(e));
  } finally {
    await small.stop();
  }
});

test('an aborted stream frees its place', async () => {
  const { cancelled } = await server.stats();
  const stream = await openai.chat.completions.create({ ...greedy, messages, max_tokens: 1900, ignore_eos: true, stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta?.content) break;
  }
  stream.controller.abort();
  let stats;
  const end = Date.now() + 20000;
  do {
    await new Promise((resolve) => setTimeout(resolve, 20));
    stats = await server.stats();
  } while (stats.running > 0 && Date.now() < end);
  assert.equal(stats.running, 0);
  assert.equal(stats.cancelled, cancelled + 1);
});

test('responses, whole and streamed, say what a chat says', async () => {
  const chat = await openai.chat.completions.create({ ...greedy, messages, reasoning_effort: 'none' });
  const asked = { model: 'demo', temperature: 0, max_output_tokens: 24, reasoning: { effort: 'none' }, input: messages };
  const whole = await openai.responses.create(asked);
  assert.equal(whole.output_text, chat.choices[0].message.content);
  assert.equal(whole.status, 'incomplete');
  const stream = openai.responses.stream(asked);
  let heard = '';
  stream.on('response.output_text.delta', (event) => { heard += event.delta; });
  const final = await stream.finalResponse();
  assert.equal(heard, whole.output_text);
  assert.equal(final.output_text, whole.output_text);
  assert.deepEqual(final.usage.output_tokens, whole.usage.output_tokens);
  const next = await openai.responses.create({ ...asked, input: [...messages, ...whole.output,
    { type: 'function_call', call_id: 'call_1', name: 'weather', arguments: '{"city":"Oslo"}' },
    { type: 'function_call_output', call_id: 'call_1', output: 'sun' }] });
  assert.ok(next.usage.input_tokens > whole.usage.input_tokens);
  await assert.rejects(openai.responses.create({ ...asked, previous_response_id: whole.id }), (e) =>
    e instanceof OpenAI.BadRequestError && e.param === 'previous_response_id');
});
