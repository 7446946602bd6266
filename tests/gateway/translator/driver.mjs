// Has npm @a2a-js/sdk do the same with each of many agents. Read from standard input, so that
// imports are found in the peer's environment. The deeds are those of peers_driver.py.

import { randomUUID } from 'node:crypto';
import { deepStrictEqual } from 'node:assert';
import { Role, TaskState } from '@a2a-js/sdk';
import {
  ClientFactory,
  DefaultAgentCardResolver,
  JsonRpcTransportFactory,
  RestTransportFactory,
} from '@a2a-js/sdk/client';
import { GrpcTransportFactory } from '@a2a-js/sdk/client/grpc';

const TRANSPORTS = {
  jsonrpc: JsonRpcTransportFactory,
  rest: RestTransportFactory,
  grpc: GrpcTransportFactory,
};
const EACH_WITHIN = 60_000;
const WHOLE = 'c0 c1 c2 c3 ';

function factoryOf(spoken) {
  const [version, carried] = spoken.split('-');
  const fetchImpl = (url, init) =>
    fetch(url, { ...init, headers: { ...init?.headers, 'A2A-Version': version } });
  const legacyCompat = { enabled: version === '0.3' };
  const cardResolver = new DefaultAgentCardResolver({ fetchImpl, legacyCompat });
  return new ClientFactory({
    transports: [new TRANSPORTS[carried]({ legacyCompat })],
    cardResolver,
  });
}

// `named` is the agent that messages name, where the address does not lead to it.
const requests = (named) => (words, { task = '', context = '', wait = true } = {}) => ({
  tenant: '',
  message: {
    metadata: named ? { agentId: named } : undefined,
    messageId: randomUUID(),
    taskId: task,
    contextId: context,
    role: Role.ROLE_USER,
    parts: [{ content: { $case: 'text', value: words }, filename: '', mediaType: '' }],
    extensions: [],
    referenceTaskIds: [],
  },
  configuration: { acceptedOutputModes: [], returnImmediately: !wait },
});
const text = (holder) => (holder?.parts ?? []).map((part) => part.content?.value ?? '').join('');
const said = (task) => (task.artifacts ?? []).map(text).join('') || text(task.status.message);
const state = (holder) =>
  Object.keys(TaskState).find((name) => TaskState[name] === holder.status?.state);

const deeds = {
  async send(client, request) {
    const task = await client.sendMessage(request('echo hello'));
    deepStrictEqual([state(task), said(task)], ['TASK_STATE_COMPLETED', 'hello']);
  },

  async stream(client, request) {
    const events = [];
    for await (const event of client.sendMessageStream(request('chunks 4'))) {
      events.push(event.payload);
    }
    deepStrictEqual(state(events.at(-1).value), 'TASK_STATE_COMPLETED');
    deepStrictEqual(events[0].$case, 'task');
    const task = await client.getTask({ tenant: '', id: events[0].value.id });
    deepStrictEqual([state(task), said(task)], ['TASK_STATE_COMPLETED', WHOLE]);
  },

  async ask(client, request) {
    const asked = await client.sendMessage(request('ask'));
    const question = [state(asked), text(asked.status.message)];
    deepStrictEqual(question, ['TASK_STATE_INPUT_REQUIRED', 'Which city?']);
    const to = { task: asked.id, context: asked.contextId };
    const done = await client.sendMessage(request('Graz', to));
    const answer = [done.id, state(done), said(done)];
    deepStrictEqual(answer, [asked.id, 'TASK_STATE_COMPLETED', 'got Graz']);
  },

  async answer_in_a_stream(client, request) {
    const asked = await client.sendMessage(request('ask'));
    const states = [];
    for await (const event of client.sendMessageStream(request('Graz', { task: asked.id }))) {
      if (event.payload.value.status) states.push(state(event.payload.value));
    }
    const ends = [states[0], states.at(-1)];
    deepStrictEqual(ends, ['TASK_STATE_WORKING', 'TASK_STATE_COMPLETED']);
    deepStrictEqual(states.includes('TASK_STATE_INPUT_REQUIRED'), false);
  },

  async cancel(client, request) {
    const task = await client.sendMessage(request('cancelme', { wait: false }));
    const canceled = await client.cancelTask({ tenant: '', id: task.id });
    deepStrictEqual([canceled.id, state(canceled)], [task.id, 'TASK_STATE_CANCELED']);
  },
};

async function within(promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error('it took too long')), EACH_WITHIN);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function tried(factory, spoken, agent, place) {
  const [address, named] = place.split('#');
  const request = requests(named);
  for (const [deed, act] of Object.entries(deeds)) {
    // Their tasks cannot wait for anybody.
    if (agent === 'corvid' && ['ask', 'answer_in_a_stream'].includes(deed)) continue;
    let detail = '';
    try {
      // Below an address the library looks only if that ends like a folder.
      await within(factory.createFromUrl(`${address}/`).then((client) => act(client, request)));
    } catch (error) {
      detail = error.stack;
    }
    console.log(JSON.stringify({ spoken, agent, deed, detail }));
  }
}

for (const [spoken, agents] of Object.entries(JSON.parse(process.argv[2]))) {
  const factory = factoryOf(spoken);
  await Promise.all(
    Object.entries(agents).map(([agent, place]) => tried(factory, spoken, agent, place)),
  );
}
process.exit(0);
