// Drives the client of npm @a2a-js/sdk: A2A 1.0 over all bindings, and its 0.3 layer.
// The scenarios are those of scenarios.py, said again: a library of another language shares none
// of their code. Read from standard input, so that imports are found in the peer's environment.

import { randomUUID } from 'node:crypto';
import { deepStrictEqual } from 'node:assert';
import { promises as dns } from 'node:dns';
import { Role, TaskState } from '@a2a-js/sdk';
import {
  ClientFactory,
  DefaultAgentCardResolver,
  JsonRpcTransportFactory,
  RestTransportFactory,
} from '@a2a-js/sdk/client';
import { GrpcTransportFactory } from '@a2a-js/sdk/client/grpc';
import {
  ExtendedAgentCardNotConfiguredError,
  PushNotificationNotSupportedError,
  TaskNotCancelableError,
  TaskNotFoundError,
  UnsupportedOperationError,
} from '@a2a-js/sdk/errors';

const EACH_WITHIN = 60_000;
const UNKNOWN_TASK = '00000000-0000-4000-8000-000000000000';
const BINDINGS = { jsonrpc: 'JSONRPC', rest: 'HTTP+JSON', grpc: 'GRPC' };
const TRANSPORTS = {
  jsonrpc: JsonRpcTransportFactory,
  rest: RestTransportFactory,
  grpc: GrpcTransportFactory,
};

const [version, ...chosen] = process.argv.slice(4);
// Below an address the library looks only if that ends like a folder.
const [address, pushing] = process.argv.slice(2, 4).map((one) => `${one}/`);
const [spoken, carried] = version.split('-');
const binding = BINDINGS[carried];

// Hosts of agents at a gateway: not every machine knows such names, though they are its own.
const { lookup } = dns;
dns.lookup = (name, options) => lookup(name.endsWith('.localhost') ? 'localhost' : name, options);

// A server of 0.3 alone would show this card to every caller; the library itself always asks
// for the one of 1.0.
const fetchCard = (url, init) =>
  fetch(url, { ...init, headers: { ...init?.headers, 'A2A-Version': spoken } });
const legacyCompat = { enabled: spoken === '0.3' };
const cardResolver = new DefaultAgentCardResolver({ fetchImpl: fetchCard, legacyCompat });
const transports = [new TRANSPORTS[carried]({ legacyCompat })];
const factory = new ClientFactory({ transports, cardResolver });
const client = await factory.createFromUrl(address);

const messageId = (prefix) => `${prefix}-${randomUUID()}`;

function expect(what, found, wanted) {
  try {
    deepStrictEqual(found, wanted);
  } catch {
    throw new Error(`${what}: ${JSON.stringify(found)}, not ${JSON.stringify(wanted)}`);
  }
}

function expectThat(holds, otherwise) {
  if (!holds) throw new Error(otherwise);
}

function request(id, { task = '', context = '', wait = true } = {}) {
  return {
    tenant: '',
    message: {
      messageId: id,
      taskId: task,
      contextId: context,
      role: Role.ROLE_USER,
      parts: [{ content: { $case: 'text', value: 'Hello' }, filename: '', mediaType: '' }],
      extensions: [],
      referenceTaskIds: [],
    },
    configuration: { acceptedOutputModes: [], returnImmediately: !wait },
  };
}

const send = (id, options) => client.sendMessage(request(id, options));
const get = (id, historyLength) => client.getTask({ tenant: '', id, historyLength });
const cancel = (id) => client.cancelTask({ tenant: '', id });
const subscribe = (id, options) => client.resubscribeTask({ tenant: '', id }, options);
const text = (holder) => (holder?.parts ?? []).map((part) => part.content?.value ?? '').join('');
const state = (holder) =>
  Object.keys(TaskState).find((name) => TaskState[name] === holder.status?.state);
const isMessage = (reply) => 'messageId' in reply;

async function sendForTask(id, options) {
  const reply = await send(id, options);
  expectThat(!isMessage(reply), `the reply is not a task: ${JSON.stringify(reply)}`);
  return reply;
}

const finishedTask = () => sendForTask(messageId('tck-complete-task'));
const runningTask = () => sendForTask(messageId('test-resubscribe-message-id'), { wait: false });

async function follow(stream) {
  const events = [];
  for await (const event of stream) events.push(event.payload);
  return events;
}

function taskOf(event) {
  expect('kind of the first event', event?.$case, 'task');
  return event.value;
}

async function refused(call, wanted) {
  let answer;
  try {
    answer = await call();
  } catch (error) {
    expectThat(error instanceof wanted, `${error.stack}\nis not a ${wanted.name}`);
    return;
  }
  throw new Error(`${wanted.name} was not raised; the answer was ${JSON.stringify(answer)}`);
}

// The library refuses by itself what the card does not offer, so this client is told it does.
async function clientToldOf(capability) {
  const card = await cardResolver.resolve(address);
  expectThat(!card.capabilities[capability], `the card offers ${capability}`);
  const capabilities = { ...card.capabilities, [capability]: true };
  return factory.createFromAgentCard({ ...card, capabilities });
}

const scenarios = {
  async card() {
    const card = await cardResolver.resolve(address);
    expectThat(card.name, 'the card has no name');
    expectThat(card.skills.length, 'the card has no skill');
    expectThat(card.capabilities.streaming, 'the card does not offer streaming');
    const offered = card.supportedInterfaces.map((one) => [
      one.protocolBinding,
      one.protocolVersion.split('.').slice(0, 2).join('.'),
    ]);
    const found = offered.some(([one, other]) => one === binding && other === spoken);
    expectThat(found, `interfaces: ${JSON.stringify(offered)}`);
    expect('version of the client', client.protocolVersion, spoken);
    await new ClientFactory().createFromUrl(address);
  },

  async 'send-completes'() {
    const id = messageId('tck-complete-task');
    const task = await sendForTask(id);
    expect('state', state(task), 'TASK_STATE_COMPLETED');
    expect('status message', text(task.status.message), 'Hello from TCK');
    expectThat(task.id && task.contextId, `an id is missing: ${JSON.stringify(task)}`);
    const [first] = task.history;
    expect('first message', [first?.messageId, first?.role], [id, Role.ROLE_USER]);
  },

  async 'send-returns-an-artifact'() {
    const task = await sendForTask(messageId('tck-artifact-text'));
    expect('state', state(task), 'TASK_STATE_COMPLETED');
    expect('artifacts', task.artifacts.map(text), ['Generated text content']);
  },

  async 'send-returns-files-and-data'() {
    const found = {};
    for (const kind of ['file', 'file-url', 'data']) {
      const task = await sendForTask(messageId(`tck-artifact-${kind}`));
      found[kind] = task.artifacts[0].parts[0];
    }
    const named = ({ filename, mediaType }) => [filename, mediaType];
    expect('kind of the file', found.file.content.$case, 'raw');
    expectThat(found.file.content.value.length, 'the file has no bytes');
    expect('name and type of bytes', named(found.file), ['output.txt', 'text/plain']);
    const url = { $case: 'url', value: 'https://example.com/output.txt' };
    expect('address', found['file-url'].content, url);
    expect('name and type of url', named(found['file-url']), ['output.txt', 'text/plain']);
    const data = { $case: 'data', value: { key: 'value', count: 42 } };
    expect('data', found.data.content, data);
  },

  async 'send-returns-a-message'() {
    const reply = await send(messageId('tck-message-response'));
    expectThat(isMessage(reply), `the reply is not a message: ${JSON.stringify(reply)}`);
    const found = [reply.role, text(reply)];
    expect('reply', found, [Role.ROLE_AGENT, 'Direct message response']);
  },

  async 'send-is-rejected'() {
    const task = await sendForTask(messageId('tck-reject-task'));
    expect('state', state(task), 'TASK_STATE_REJECTED');
  },

  async 'send-does-not-wait'() {
    const task = await runningTask();
    const busy = ['TASK_STATE_SUBMITTED', 'TASK_STATE_WORKING'].includes(state(task));
    expectThat(busy, `the task rests already: ${JSON.stringify(task)}`);
    await cancel(task.id);
  },

  async 'stream-in-order'() {
    const [first, ...rest] = await follow(
      client.sendMessageStream(request(messageId('tck-stream-001'))),
    );
    const task = taskOf(first);
    expect('tasks of the events', [...new Set(rest.map((e) => e.value.taskId))], [task.id]);
    const steps = rest.map((e) => (e.$case === 'statusUpdate' ? state(e.value) : e.$case));
    if (state(task) === 'TASK_STATE_WORKING') steps.unshift('TASK_STATE_WORKING');
    // A server may tell more than one step of work; what matters is what comes after what.
    const order = ['TASK_STATE_WORKING', 'artifactUpdate', 'TASK_STATE_COMPLETED'];
    expect('steps', [...new Set(steps)], order);
    expect('last step', steps.at(-1), 'TASK_STATE_COMPLETED');
    const chunks = rest.filter((e) => e.$case === 'artifactUpdate');
    const told = chunks.map((e) => text(e.value.artifact)).join('');
    expect('stored artifacts', (await get(task.id)).artifacts.map(text), [told]);
  },

  async 'stream-in-chunks'() {
    const events = await follow(
      client.sendMessageStream(request(messageId('tck-stream-artifact-chunked'))),
    );
    const chunks = events.filter((e) => e.$case === 'artifactUpdate').map((e) => e.value);
    expect('texts', chunks.map((chunk) => text(chunk.artifact)), ['chunk-1 ', 'chunk-2']);
    expect('append', chunks.map((chunk) => chunk.append), [false, true]);
    expect('last', chunks.map((chunk) => chunk.lastChunk), [false, true]);
    expect('artifact ids', new Set(chunks.map((chunk) => chunk.artifact.artifactId)).size, 1);
    const stored = await get(taskOf(events[0]).id);
    expect('stored artifacts', stored.artifacts.map(text), ['chunk-1 chunk-2']);
  },

  async 'stream-a-message'() {
    const events = await follow(
      client.sendMessageStream(request(messageId('tck-message-response'))),
    );
    expect('kinds of the events', events.map((e) => e.$case), ['message']);
  },

  async 'get-with-history'() {
    const [first, second] = [messageId('tck-input-required'), messageId('tck-input-required')];
    const { id } = await sendForTask(first);
    await send(second, { task: id });
    const whole = await get(id);
    const byUser = whole.history.filter((message) => message.role === Role.ROLE_USER);
    expect('messages of the user', byUser.map((message) => message.messageId), [first, second]);
    expect('none asked for', (await get(id, 0)).history, []);
    expect('the latest', (await get(id, 1)).history, whole.history.slice(-1));
    expect('more than all', (await get(id, 1000)).history, whole.history);
  },

  async 'list-in-pages'() {
    const one = await sendForTask(messageId('tck-artifact-text'));
    const context = one.contextId;
    const ids = [one.id];
    for (let more = 0; more < 2; more++) {
      const task = await sendForTask(messageId('tck-artifact-text'), { context });
      expect('context', task.contextId, context);
      ids.push(task.id);
    }
    await finishedTask();

    const page = (more) =>
      client.listTasks({
        tenant: '',
        contextId: context,
        status: TaskState.TASK_STATE_UNSPECIFIED,
        pageSize: 1,
        pageToken: '',
        ...more,
      });
    const pages = [await page({})];
    while (pages.at(-1).nextPageToken && pages.length < 10) {
      pages.push(await page({ pageToken: pages.at(-1).nextPageToken }));
    }
    expect('sizes of the pages', pages.map((one) => one.tasks.length), [1, 1, 1]);
    expect('totals', pages.map((one) => one.totalSize), [3, 3, 3]);
    const listed = pages.flatMap((one) => one.tasks);
    expect('tasks, latest first', listed.map((task) => task.id), ids.toReversed());
    expect('artifacts unasked', listed.flatMap((task) => task.artifacts), []);

    const asked = (await page({ includeArtifacts: true })).tasks[0];
    expect('artifacts asked for', asked.artifacts.map(text), ['Generated text content']);
    expect('failed ones', (await page({ status: TaskState.TASK_STATE_FAILED })).tasks, []);
    const completed = await page({ status: TaskState.TASK_STATE_COMPLETED });
    expect('completed ones', completed.totalSize, 3);
    expect('a foreign context', (await page({ contextId: randomUUID() })).tasks, []);
  },

  async 'cancel-a-running-task'() {
    const task = await runningTask();
    const canceled = await cancel(task.id);
    expect('answer', [canceled.id, state(canceled)], [task.id, 'TASK_STATE_CANCELED']);
    expect('state', state(await get(task.id)), 'TASK_STATE_CANCELED');
  },

  async 'subscribe-after-a-lost-stream'() {
    const line = new AbortController();
    const stream = client.sendMessageStream(request(messageId('test-resubscribe-message-id')), {
      signal: line.signal,
    });
    const task = taskOf((await stream.next()).value.payload);
    await stream.next();
    line.abort();
    const [snapshot, ...rest] = await follow(subscribe(task.id));
    expect('task subscribed to', taskOf(snapshot).id, task.id);
    expectThat(rest.some((e) => e.$case === 'artifactUpdate'), 'no artifact came');
    expect('last event', state(rest.at(-1).value), 'TASK_STATE_COMPLETED');
    expect('state', state(await get(task.id)), 'TASK_STATE_COMPLETED');
  },

  async 'two-subscribers-see-the-same'() {
    const task = await runningTask();
    let waiting = 2;
    const watch = async () => {
      const seen = [];
      for await (const event of subscribe(task.id)) {
        seen.push(event.payload);
        // Ended only when both have something to compare.
        if (seen.length === 3 && --waiting === 0) await cancel(task.id);
      }
      return seen;
    };
    const both = await Promise.all([watch(), watch()]);
    expect('tasks subscribed to', both.map(([e]) => taskOf(e).id), [task.id, task.id]);
    // One may have come later and find more in its snapshot; from there on they are equal.
    const [shorter, longer] = both.map(([, ...rest]) => rest).sort((a, b) => a.length - b.length);
    expect('events', longer.slice(-shorter.length), shorter);
    expect('last event', state(shorter.at(-1).value), 'TASK_STATE_CANCELED');
  },

  async 'multi-turn'() {
    const asked = await sendForTask(messageId('tck-input-required'));
    expect('state', state(asked), 'TASK_STATE_INPUT_REQUIRED');
    const again = await sendForTask(messageId('tck-input-required'), { task: asked.id });
    expect('second turn', [again.id, state(again)], [asked.id, 'TASK_STATE_INPUT_REQUIRED']);
    const done = await sendForTask(messageId('tck-complete-task'), {
      task: asked.id,
      context: asked.contextId,
    });
    expect('third turn', [done.id, state(done)], [asked.id, 'TASK_STATE_COMPLETED']);
    expect('context', done.contextId, asked.contextId);
  },

  async 'multi-turn-in-streams'() {
    const [first, second] = [messageId('tck-input-required'), messageId('tck-complete-task')];
    const asked = await follow(client.sendMessageStream(request(first)));
    const [{ id }, ended] = [taskOf(asked[0]), state(asked.at(-1).value)];
    expect('end of the first stream', ended, 'TASK_STATE_INPUT_REQUIRED');
    const done = await follow(client.sendMessageStream(request(second, { task: id })));
    const opening = taskOf(done[0]);
    expect('task of the second stream', opening.id, id);
    const byUser = opening.history.filter((message) => message.role === Role.ROLE_USER);
    expect('messages of the user', byUser.map((message) => message.messageId), [first, second]);
    expect('beginning of the second stream', state(opening), 'TASK_STATE_WORKING');
    expect('end of the second stream', state(done.at(-1).value), 'TASK_STATE_COMPLETED');
  },

  async 'unknown-task'() {
    await refused(() => get(UNKNOWN_TASK), TaskNotFoundError);
    await refused(() => cancel(UNKNOWN_TASK), TaskNotFoundError);
    await refused(() => follow(subscribe(UNKNOWN_TASK)), TaskNotFoundError);
    const options = { task: UNKNOWN_TASK };
    await refused(() => send(messageId('tck-complete-task'), options), TaskNotFoundError);
  },

  async 'finished-task-stays-finished'() {
    const task = await finishedTask();
    await refused(() => cancel(task.id), TaskNotCancelableError);
    if (version === '0.3-rest' || version === '0.3-grpc') {
      // So the proto of 0.3 has it.
      const [shown, ...more] = await follow(subscribe(task.id));
      expect('task subscribed to', [taskOf(shown).id, more], [task.id, []]);
    } else {
      await refused(() => follow(subscribe(task.id)), UnsupportedOperationError);
    }
    const options = { task: task.id };
    await refused(() => send(messageId('tck-complete-task'), options), UnsupportedOperationError);
    expect('task', await get(task.id), task);
  },

  async 'push-is-not-supported'() {
    const task = await finishedTask();
    const told = await clientToldOf('pushNotifications');
    const config = { tenant: '', id: '', taskId: task.id, url: 'https://example.com/hook' };
    const call = () => told.createTaskPushNotificationConfig({ ...config, token: '' });
    await refused(call, PushNotificationNotSupportedError);
  },

  async 'push-configurations'() {
    const other = await factory.createFromUrl(pushing);
    const task = await other.sendMessage(request(messageId('tck-complete-task')));
    const authentication = { scheme: 'Bearer', credentials: 'hunter2' };
    const named = (id) => ({ tenant: '', taskId: task.id, id });
    const set = (id, path, more) =>
      other.createTaskPushNotificationConfig({
        ...named(id), url: `http://127.0.0.1:9/${path}`, token: 't', ...more,
      });
    const plain = ({ id, taskId, url, authentication: shown }) =>
      [id, taskId, url, shown?.scheme ?? '', shown?.credentials ?? ''];
    const first = ['first', task.id, 'http://127.0.0.1:9/1', 'Bearer', ''];
    const second = ['second', task.id, 'http://127.0.0.1:9/3', '', ''];
    expect('answer', plain(await set('first', '1', { authentication })).at(-1), 'hunter2');
    const get = (id) => other.getTaskPushNotificationConfig(named(id));
    expect('without credentials', plain(await get('first')), first);
    await set('second', '2');
    await set('second', '3');
    const list = async () => {
      const page = { tenant: '', taskId: task.id, pageSize: 0, pageToken: '' };
      return (await other.listTaskPushNotificationConfig(page)).configs.map(plain);
    };
    expect('list', await list(), [first, second]);
    await other.deleteTaskPushNotificationConfig(named('first'));
    await other.deleteTaskPushNotificationConfig(named('first'));
    expect('rest', await list(), [second]);
  },

  async 'extended-card-is-off'() {
    const told = await clientToldOf('extendedAgentCard');
    if (version === '0.3-grpc') {
      // One operation for both cards: it gives the public one.
      const { name } = await cardResolver.resolve(address);
      expect('card', (await told.getAgentCard()).name, name);
      return;
    }
    const wanted =
      spoken === '0.3' ? ExtendedAgentCardNotConfiguredError : UnsupportedOperationError;
    await refused(() => told.getAgentCard(), wanted);
  },
};

async function outcome(scenario) {
  let timer;
  const late = new Promise((_, reject) => {
    const error = new Error(`not over within ${EACH_WITHIN / 1000} s`);
    timer = setTimeout(() => reject(error), EACH_WITHIN);
  });
  try {
    await Promise.race([scenarios[scenario](), late]);
    return { scenario, ok: true, detail: '' };
  } catch (error) {
    return { scenario, ok: false, detail: error.stack };
  } finally {
    clearTimeout(timer);
  }
}

for (const scenario of chosen) console.log(JSON.stringify(await outcome(scenario)));
process.exit(0);
