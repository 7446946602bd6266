// Sends a text with the client of npm @a2a-js/sdk, and prints the answer.

import { randomUUID } from 'node:crypto';
import { Role } from '@a2a-js/sdk';
import {
  ClientFactory,
  DefaultAgentCardResolver,
  JsonRpcTransportFactory,
} from '@a2a-js/sdk/client';

const [address, token, text] = process.argv.slice(2);
const fetchImpl = (url, init) => {
  const headers = new Headers(init?.headers);
  headers.set('Authorization', `Bearer ${token}`);
  return fetch(url, { ...init, headers });
};
const factory = new ClientFactory({
  transports: [new JsonRpcTransportFactory({ fetchImpl })],
  cardResolver: new DefaultAgentCardResolver({ fetchImpl }),
});
const client = await factory.createFromUrl(`${address}/`);
const task = await client.sendMessage({
  tenant: '',
  message: {
    messageId: randomUUID(),
    taskId: '',
    contextId: '',
    role: Role.ROLE_USER,
    parts: [{ content: { $case: 'text', value: text }, filename: '', mediaType: '' }],
    extensions: [],
    referenceTaskIds: [],
  },
  configuration: { acceptedOutputModes: [], returnImmediately: false },
});
console.log(task.artifacts.flatMap((one) => one.parts.map((part) => part.content.value)).join(''));
process.exit(0);
