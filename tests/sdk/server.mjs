// A running server for the tests of clients.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const demo = fileURLToPath(new URL('../../models/tandem-demo', import.meta.url));

/** A server of the demo model, which is called demo, on a port of its own. */
export async function start(...options) {
  const child = spawn(process.env.TANDEM, ['serve', '--model', demo, '--served-model-name', 'demo', '--port', '0',
    '--threads', '1', ...options], { stdio: ['ignore', 'ignore', 'pipe'] });
  const ended = new Promise((resolve) => child.once('exit', resolve));
  let address;
  for await (const line of createInterface({ input: child.stderr })) {
    address = /(http:\S+)\/v1/.exec(line)?.[1];
    if (address) break;
  }
  assert.ok(address, 'the server ended before it served');
  child.stderr.resume();
  const stop = async () => {
    child.kill('SIGTERM');
    assert.equal(await ended, 0);
  };
  const stats = async () => (await fetch(`${address}/v1/stats`)).json();
  return { address, stop, stats };
}
