/**
 * A proxy between the SDKs' tests and the service. The tests use ids that their mock server invents (`GET /v1/files/file_id`). The proxy
 * creates a real object, and replaces the invented id in path, query and body. The API key of the tests is replaced as well. Responses are
 * not changed.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { setTimeout as delay } from 'node:timers/promises'
import { silence, waveOf } from '../../support/speech/wave.ts'

export interface StandIn extends AsyncDisposable {
  readonly url: string
}

type Json = Record<string, unknown>
type Ask = (method: string, path: string, body?: Json | FormData) => Promise<Json>
/** Creates an object for a request and returns its id. */
type Make = (ask: Ask, use: Use) => Promise<string>
/** Request that will use the object. `cancel` needs an object that is still running, and `stream` a response created with `stream: true`. */
type Use = 'cancel' | 'stream' | 'other'

/** Timeout for the end of a batch. */
const END_MS = 60_000
/** Prompt that keeps the model busy until the test has cancelled the call. */
const SLOW = '!echo tokens=600 delay_ms=100'
const MODEL = 'string'
const EXAMPLE = 'Example data'
const SILENCE = waveOf(silence(1))

/**
 * For each id in the tests: the function that creates the object that replaces the id. Longer ids come first, so that `batch_id` is not
 * replaced within `message_batch_id`.
 */
const MAKES: readonly (readonly [dummy: string, make: Make])[] = [
  ['resp_677efb5139a88190b512bc3fef8e535d', makeResponse],
  ['previous_response_id', makeResponse],
  ['message_batch_id', makeMessageBatch],
  ['completion_id', makeCompletion],
  ['input_file_id', makeFile],
  ['response_id', makeResponse],
  ['batch_id', makeBatch],
  ['file_id', makeFile],
  ['conv_123', makeConversation],
]

/**
 * Starts the proxy on a free port.
 *
 * @param service `http://127.0.0.1:PORT` of the service
 * @param key A valid API key
 */
export async function startStandIn(service: string, key: string): Promise<StandIn> {
  const ask: Ask = async (method, path, body) => {
    const isForm = body instanceof FormData
    const headers = { authorization: `Bearer ${key}`, ...(!isForm && { 'content-type': 'application/json' }) }
    const answer = await fetch(service + path, {
      method,
      headers,
      ...(body && { body: isForm ? body : JSON.stringify(body) }),
    })
    const isStream = answer.headers.get('content-type')?.startsWith('text/event-stream') === true
    const json = isStream ? lastResponse(await answer.text()) : ((await answer.json()) as Json)
    if (!answer.ok) throw new Error(`${method} ${path} answered ${answer.status}: ${JSON.stringify(json)}`)
    return json
  }
  const server = createServer((request, response) => {
    relay(request, response, service, key, ask).catch((error: Error) => {
      response.writeHead(599).end(`The stand-in could not make what the test names: ${error.message}`)
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

/** The response object in the last event of a Responses stream. */
function lastResponse(stream: string): Json {
  const data = stream.split('\n').findLast((line) => line.startsWith('data: {'))
  return JSON.parse(data?.slice('data: '.length) ?? '{}').response
}

async function relay(
  request: IncomingMessage,
  response: ServerResponse,
  service: string,
  key: string,
  ask: Ask,
): Promise<void> {
  const body = withAudio(await buffer(request), request.url ?? '')
  const isJson = request.headers['content-type']?.startsWith('application/json') === true
  const { url = '/', text } = await withReal(request.url ?? '/', isJson ? body.toString() : undefined, ask)
  const headers = new Headers()
  for (const [name, value] of Object.entries(request.headers))
    if (!['host', 'connection', 'content-length', 'transfer-encoding', 'accept-encoding'].includes(name))
      headers.set(name, String(value))
  if (headers.has('authorization')) headers.set('authorization', `Bearer ${key}`)
  if (headers.has('x-api-key')) headers.set('x-api-key', key)
  const method = request.method ?? 'GET'
  const sent = text ?? (body.length > 0 ? new Uint8Array(body) : undefined)
  const answer = await fetch(service + url, { method, headers, ...(sent !== undefined && { body: sent }) })
  const kept = [...answer.headers].filter(
    ([name]) => !['content-encoding', 'content-length', 'connection'].includes(name),
  )
  response.writeHead(answer.status, Object.fromEntries(kept))
  response.end(Buffer.from(await answer.arrayBuffer()))
}

/** The tests upload `Example data`, which is not audio; a second of silence replaces it. */
function withAudio(body: Buffer, url: string): Buffer {
  const at = url.includes('/audio/') ? body.indexOf(EXAMPLE) : -1
  return at < 0 ? body : Buffer.concat([body.subarray(0, at), SILENCE, body.subarray(at + EXAMPLE.length)])
}

/** Returns the request with ids of real objects in place of the placeholders. */
async function withReal(
  url: string,
  text: string | undefined,
  ask: Ask,
): Promise<{ url: string; text?: string | undefined }> {
  const use = useOf(url)
  let path = url.startsWith('/v1/batches') ? url.replace('after=after', 'after=/batch_id') : url
  let body = text
  for (const [dummy, make] of MAKES) {
    const inPath = path.includes(`/${dummy}`)
    const quoted = `"${dummy}"`
    // A field may have its own name as its value, such as `"file_id": "file_id"`. Only the value must be replaced.
    const inBody = body !== undefined && new RegExp(`:\\s*${quoted}`).test(body)
    if (!inPath && !inBody) continue
    const id = await make(ask, use)
    path = path.replace(`=/${dummy}`, `=${id}`).replace(`/${dummy}`, `/${id}`)
    body = body?.replaceAll(new RegExp(`(:\\s*)${quoted}`, 'g'), `$1"${id}"`)
    if (dummy === 'conv_123' && path.includes('msg_abc')) path = path.replace('msg_abc', await itemOf(ask, id))
  }
  return { url: path, text: body }
}

function useOf(url: string): Use {
  if (/\/cancel(\?|$)/.test(url)) return 'cancel'
  return url.includes('stream=true') ? 'stream' : 'other'
}

async function makeFile(ask: Ask): Promise<string> {
  const line = { custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body: chatOf('hello') }
  const form = new FormData()
  form.set('purpose', 'batch')
  form.set('file', new Blob([`${JSON.stringify(line)}\n`]), 'requests.jsonl')
  return String((await ask('POST', '/v1/files', form)).id)
}

function chatOf(content: string): Json {
  return { model: MODEL, messages: [{ role: 'user', content }] }
}

async function makeBatch(ask: Ask): Promise<string> {
  const input_file_id = await makeFile(ask)
  const wanted = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' }
  return String((await ask('POST', '/v1/batches', wanted)).id)
}

async function makeMessageBatch(ask: Ask, use: Use): Promise<string> {
  const params = { ...chatOf(use === 'cancel' ? SLOW : 'hello'), max_tokens: 1024 }
  const { id } = await ask('POST', '/v1/messages/batches', { requests: [{ custom_id: 'a', params }] })
  const deadline = Date.now() + END_MS
  while (use !== 'cancel' && (await ask('GET', `/v1/messages/batches/${id}`)).processing_status !== 'ended') {
    if (Date.now() > deadline) throw new Error(`The batch ${id} did not end.`)
    await delay(50)
  }
  return String(id)
}

async function makeResponse(ask: Ask, use: Use): Promise<string> {
  const wanted = use === 'cancel' ? { input: SLOW, background: true } : { input: 'hello', store: true }
  const stream = use === 'stream' && { stream: true }
  return String((await ask('POST', '/v1/responses', { model: MODEL, ...wanted, ...stream })).id)
}

async function makeCompletion(ask: Ask): Promise<string> {
  return String((await ask('POST', '/v1/chat/completions', { ...chatOf('hello'), store: true })).id)
}

async function makeConversation(ask: Ask): Promise<string> {
  const items = [{ type: 'message', role: 'user', content: 'hello' }]
  return String((await ask('POST', '/v1/conversations', { items })).id)
}

async function itemOf(ask: Ask, conversation: string): Promise<string> {
  const { data } = await ask('GET', `/v1/conversations/${conversation}/items`)
  return (data as { id: string }[])[0]?.id ?? 'none'
}
