// Runs the reference client of AG-UI against an agent, and prints what it saw as JSON.
//
//   node agui_client.mjs <url> [options as JSON]
//   node agui_client.mjs --verify            event sequences on stdin, one JSON array a line
//
// Options: text, threadId, runId, state, tools, context, messages, forwardedProps, resume,
// headers, abortAfterMs (after the first event), timeoutMs.
//
// Exit codes of a run: 0 RUN_FINISHED, 1 RUN_ERROR, 2 the client rejected the answer or the
// stream had no end, 3 timeout. Of --verify: 0; prints one `null` or error text a line.
import { HttpAgent, transformChunks, verifyEvents } from "@ag-ui/client";
import { from, lastValueFrom, toArray } from "rxjs";
import readline from "node:readline";

// What the client logs goes to stderr, so that stdout is one JSON document.
const warnings = [];
console.warn = (...parts) => warnings.push(parts.map(String).join(" "));
const failures = [];
console.error = (...parts) => failures.push(parts.map(String).join(" "));

async function run(url, options) {
  const request = {};
  const agent = new HttpAgent({
    url,
    headers: options.headers ?? {},
    threadId: options.threadId,
    initialState: options.state,
    initialMessages:
      options.messages ??
      (options.resume ? [] : [{ id: "user-1", role: "user", content: options.text ?? "hello" }]),
    fetch: async (target, init) => {
      request.body = JSON.parse(init.body);
      request.headers = init.headers;
      const response = await fetch(target, init);
      request.status = response.status;
      return response;
    },
  });

  const events = [];
  let end;
  let timedOut = false;
  let abort;
  const timeout = setTimeout(() => {
    timedOut = true;
    agent.abortRun();
  }, options.timeoutMs ?? 20000);
  const subscriber = {
    onEvent({ event }) {
      const { rawEvent, ...told } = event;
      events.push(told);
      if (event.type === "RUN_FINISHED" || event.type === "RUN_ERROR") end = event.type;
      if (options.abortAfterMs !== undefined)
        abort ??= setTimeout(() => agent.abortRun(), options.abortAfterMs);
    },
    onRunFinishedEvent({ outcome, result, pendingToolCallIds, interrupts }) {
      request.finished = { outcome, result, pendingToolCallIds, interrupts };
    },
  };

  let failure;
  try {
    await agent.runAgent(
      {
        runId: options.runId,
        tools: options.tools,
        context: options.context,
        forwardedProps: options.forwardedProps,
        resume: options.resume,
      },
      subscriber,
    );
  } catch (error) {
    failure = { message: String(error?.message ?? error), status: error?.status, payload: error?.payload };
  }
  clearTimeout(timeout);
  clearTimeout(abort);

  console.log(
    JSON.stringify({
      events,
      types: events.map((event) => event.type),
      messages: agent.messages,
      state: agent.state,
      pendingInterrupts: agent.pendingInterrupts,
      request,
      failure,
      warnings,
      failures,
    }),
  );
  if (timedOut) return 3;
  if (failure || !end) return 2;
  return end === "RUN_ERROR" ? 1 : 0;
}

async function verify() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    try {
      const events$ = from(JSON.parse(line));
      await lastValueFrom(events$.pipe(transformChunks(), verifyEvents(), toArray()));
      console.log("null");
    } catch (error) {
      console.log(JSON.stringify(String(error?.message ?? error)));
    }
  }
  return 0;
}

const [target, options] = process.argv.slice(2);
process.exitCode = target === "--verify" ? await verify() : await run(target, JSON.parse(options ?? "{}"));
