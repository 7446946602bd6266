// The server of npm @a2a-js/sdk 1.x: 1.0 over all bindings, and its 0.3 layer over them.
// What each word means is written in playing.py.

import { isUtf8 } from "node:buffer";
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { Role, TaskState } from "@a2a-js/sdk";
import {
  AgentEvent,
  DefaultRequestHandler,
  InMemoryPushNotificationStore,
  InMemoryTaskStore,
} from "@a2a-js/sdk/server";
import {
  agentCardHandler,
  jsonRpcHandler,
  restHandler,
  UserBuilder,
} from "@a2a-js/sdk/server/express";
import { A2AService, grpcService } from "@a2a-js/sdk/server/grpc";
import { LegacyA2AService, legacyGrpcService } from "@a2a-js/sdk/compat/v0_3/server/grpc";
import { Server as RpcServer, ServerCredentials } from "@grpc/grpc-js";
import express from "express";

const BETWEEN_CHUNKS = 20;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const part = ($case, value, filename = "", mediaType = "") => ({
  content: { $case, value },
  metadata: undefined,
  filename,
  mediaType,
});

function described({ content, filename, mediaType }) {
  if (content.$case === "raw") {
    const raw = Buffer.from(content.value);
    return `file ${filename} ${mediaType} ${raw.toString(isUtf8(raw) ? "utf8" : "hex")}`;
  }
  return `data ${JSON.stringify(content.value)}`;
}

class Stage {
  constructor({ taskId, contextId, task, userMessage }, bus) {
    Object.assign(this, { taskId, contextId, task, userMessage, bus });
  }

  message(text) {
    return {
      messageId: randomUUID(),
      contextId: this.contextId,
      taskId: "",
      role: Role.ROLE_AGENT,
      parts: [part("text", text)],
      metadata: undefined,
      extensions: [],
      referenceTaskIds: [],
    };
  }

  begin() {
    if (this.task) return;
    this.task = {
      id: this.taskId,
      contextId: this.contextId,
      status: { state: TaskState.TASK_STATE_SUBMITTED, message: undefined, timestamp: now() },
      artifacts: [],
      history: [this.userMessage],
      metadata: undefined,
    };
    this.bus.publish(AgentEvent.task(this.task));
  }

  status(state, text) {
    this.begin();
    const message = text && { ...this.message(text), taskId: this.taskId };
    const { taskId, contextId } = this;
    const status = { state, message, timestamp: now() };
    this.bus.publish(AgentEvent.statusUpdate({ taskId, contextId, status, metadata: undefined }));
  }

  artifact(parts, append = false, lastChunk = true) {
    this.begin();
    const artifact = {
      artifactId: "result",
      name: "",
      description: "",
      parts,
      metadata: undefined,
      extensions: [],
    };
    const { taskId, contextId } = this;
    const update = { taskId, contextId, artifact, append, lastChunk, metadata: undefined };
    this.bus.publish(AgentEvent.artifactUpdate(update));
  }

  finish(text) {
    this.artifact([part("text", text)]);
    this.status(TaskState.TASK_STATE_COMPLETED);
  }
}

const now = () => new Date().toISOString();

class Player {
  canceled = new Map();

  async execute(context, bus) {
    const stage = new Stage(context, bus);
    await this.play(context.userMessage.parts, stage);
    bus.finished();
  }

  async play(parts, stage) {
    const isText = ({ content }) => content.$case === "text";
    const text = parts.filter(isText).map(({ content }) => content.value).join("");
    const [word] = text.split(" ", 1);
    const rest = text.slice(word.length + 1);
    if (stage.task) return stage.finish(`got ${text}`);
    switch (word) {
      case "message":
        return stage.bus.publish(AgentEvent.message(stage.message(rest)));
      case "chunks":
        stage.status(TaskState.TASK_STATE_WORKING);
        for (let i = 0; i < Number(rest); i++) {
          stage.artifact([part("text", `c${i} `)], i > 0, i === Number(rest) - 1);
          await sleep(BETWEEN_CHUNKS);
        }
        return stage.status(TaskState.TASK_STATE_COMPLETED);
      case "ask":
        return stage.status(TaskState.TASK_STATE_INPUT_REQUIRED, "Which city?");
      case "fail":
        return stage.status(TaskState.TASK_STATE_FAILED, "It went wrong, as asked.");
      case "slow":
        stage.status(TaskState.TASK_STATE_WORKING);
        await sleep(Number(rest) * 100);
        return stage.finish("done");
      case "file": {
        const raw = Buffer.from([0, 1, ...Buffer.from(" bytes "), 255]);
        const data = { city: "Graz", tags: ["a", "b"] };
        stage.artifact([
          part("raw", raw, "report.bin", "application/x-report"),
          part("data", data),
        ]);
        return stage.status(TaskState.TASK_STATE_COMPLETED);
      }
      case "text-file":
      case "array": {
        const text = Buffer.from("aGVsbG8=");
        stage.artifact([
          word === "array"
            ? part("data", ["Graz", { tags: ["a"] }])
            : part("raw", text, "hello.txt", "text/plain"),
        ]);
        return stage.status(TaskState.TASK_STATE_COMPLETED);
      }
      case "describe":
        return stage.finish(parts.filter((one) => !isText(one)).map(described).join("\n"));
      case "cancelme":
        stage.status(TaskState.TASK_STATE_WORKING);
        await new Promise((resolve) => this.canceled.set(stage.taskId, resolve));
        return stage.status(TaskState.TASK_STATE_CANCELED);
      default:
        return stage.finish(rest);
    }
  }

  async cancelTask(taskId) {
    this.canceled.get(taskId)?.();
  }
}

const rpcs = new RpcServer();
const rpcPort = await new Promise((resolve, reject) =>
  rpcs.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, port) =>
    error ? reject(error) : resolve(port),
  ),
);
const app = express();
const server = createServer(app);
server.listen(0, "127.0.0.1", () => {
  const address = `http://127.0.0.1:${server.address().port}`;
  const card = {
    name: "Player",
    description: "Does what the text says.",
    supportedInterfaces: ["1.0", "0.3"].flatMap((protocolVersion) => [
      { url: `${address}/rpc`, protocolBinding: "JSONRPC", tenant: "", protocolVersion },
      { url: `${address}/rest`, protocolBinding: "HTTP+JSON", tenant: "", protocolVersion },
      { url: `127.0.0.1:${rpcPort}`, protocolBinding: "GRPC", tenant: "", protocolVersion },
    ]),
    provider: undefined,
    version: "1.0.0",
    capabilities: { streaming: true, pushNotifications: true, extensions: [] },
    securitySchemes: {},
    securityRequirements: [],
    defaultInputModes: ["text/plain"],
    defaultOutputModes: ["text/plain"],
    skills: [
      {
        id: "play",
        name: "Play",
        description: "Plays.",
        tags: ["test"],
        examples: [],
        inputModes: [],
        outputModes: [],
        securityRequirements: [],
      },
    ],
    signatures: [],
  };
  const requestHandler = new DefaultRequestHandler(
    card,
    new InMemoryTaskStore(),
    new Player(),
    undefined,
    new InMemoryPushNotificationStore(),
    // Configurations are kept; nothing is posted.
    { send: async () => {} },
  );
  const options = {
    requestHandler,
    userBuilder: UserBuilder.noAuthentication,
    legacyCompat: { enabled: true },
  };
  app.use(
    "/.well-known/agent-card.json",
    agentCardHandler({ agentCardProvider: requestHandler, legacyCompat: { enabled: true } }),
  );
  app.use("/rpc", jsonRpcHandler(options));
  app.use("/rest", restHandler(options));
  rpcs.addService(A2AService, grpcService(options));
  rpcs.addService(LegacyA2AService, legacyGrpcService(options));
  console.log(`Ready: ${address}`);
});

process.on("SIGTERM", () => process.exit(0));
process.stdin.on("end", () => process.exit(0)).resume();
