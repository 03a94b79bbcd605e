// Errors, and a WebSocket as two directions: frames that are awaited, and frames that a source feeds.

/** The server refused a request or could not be reached. */
export class IzwiError extends Error {
  constructor(message, { code, param, status, retryAfter, requestId, cause } = {}) {
    super(message, { cause });
    this.name = "IzwiError";
    this.code = code;
    this.param = param;
    this.status = status;
    this.retryAfter = retryAfter;
    this.requestId = requestId;
  }
}

export async function errorOfResponse(response) {
  const body = await response.json().catch(() => undefined);
  const { message, code, param } = body?.error ?? {};
  const retryAfter = response.headers.get("Retry-After");
  return new IzwiError(message ?? `the server answered with status ${response.status}`, {
    code,
    param: param ?? undefined,
    status: response.status,
    retryAfter: retryAfter === null ? undefined : Number(retryAfter),
    requestId: response.headers.get("X-Request-Id") ?? undefined,
  });
}

export function unreachable(url, cause) {
  const why = cause?.cause?.message ?? cause?.message ?? cause;
  return new IzwiError(`no server answers at ${url} (${why}); start one with \`izwi serve\``, { code: "unreachable", cause });
}

/** The subprotocols that carry a key; null where the key has characters that no subprotocol may have. */
export function protocolsOf(apiKey) {
  if (!apiKey) return [];
  return /^[\w!#$%&'*+.^`|~-]+$/.test(apiKey) ? ["izwi", `izwi-api-key.${apiKey}`] : null;
}

/** Bytes that may wait to be sent before a source is asked for more. */
const MAX_BUFFERED_BYTES = 1 << 20;

export class Socket {
  #socket;
  #received = [];
  #waiting;
  #end;

  /** Opens a connection. */
  static open(WebSocket, url, protocols) {
    return new Promise((resolve, reject) => {
      const socket = new WebSocket(url, protocols);
      socket.binaryType = "arraybuffer";
      const refused = () => reject(new IzwiError(`the server refused a WebSocket at ${url.split("?")[0]}`));
      socket.onerror = refused;
      socket.onclose = refused;
      socket.onopen = () => resolve(new Socket(socket));
    });
  }

  constructor(socket) {
    this.#socket = socket;
    socket.onmessage = ({ data }) => this.#push(data);
    socket.onerror = () => {};
    socket.onclose = ({ code, reason }) => {
      const why = `code ${code}${reason ? `, ${reason}` : ""}`;
      this.#finish(new IzwiError(`the connection ended before the session (${why})`, { code: "connection_closed" }));
    };
  }

  /** The next frame: an event, or the bytes of audio. An error of the server is thrown. */
  async receive() {
    if (!this.#received.length && !this.#end) {
      await new Promise((resolve) => {
        this.#waiting = resolve;
      });
    }
    if (!this.#received.length) throw this.#end;
    const frame = this.#received.shift();
    if (typeof frame !== "string") return new Uint8Array(frame);
    const event = JSON.parse(frame);
    if (event.type !== "error") return event;
    const { message, code, param, retry_after: retryAfter } = event;
    throw new IzwiError(message, { code, param: param ?? undefined, retryAfter });
  }

  /** Sends a message; what is sent on a closed connection is dropped. */
  send(type, members = {}) {
    this.#write(JSON.stringify({ type, ...members }));
  }

  /** Sends what `source` gives, then the end of the input. `frameOf` makes an event or bytes of each item. */
  async feed(source, frameOf) {
    try {
      for await (const item of source) {
        if (this.#end) return;
        const frame = frameOf(item);
        this.#write(frame.type ? JSON.stringify(frame) : frame);
        while (this.#socket.bufferedAmount > MAX_BUFFERED_BYTES && !this.#end) {
          await new Promise((resolve) => setTimeout(resolve, 10));
        }
      }
      this.send("input.done");
    } catch (why) {
      this.fail(why);
    }
  }

  /** Closes the connection; `receive` throws `why`, before what has come. */
  fail(why) {
    this.#received.length = 0;
    this.#finish(why);
    this.#socket.close();
  }

  close() {
    this.fail(new IzwiError("the session was closed", { code: "connection_closed" }));
  }

  #write(frame) {
    const OPEN = 1;
    if (this.#socket.readyState === OPEN) this.#socket.send(frame);
  }

  #push(frame) {
    this.#received.push(frame);
    this.#waiting?.();
  }

  #finish(why) {
    this.#end ??= why;
    this.#waiting?.();
  }
}
