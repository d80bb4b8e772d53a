import type { EncodeContext, JobEnvelope, StoredRequest } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { HELD_PER_BYTE } from '#shared/capacity/byte-budgets.ts'
import type { Semaphore } from '#shared/capacity/semaphore.ts'
import { readJson } from '#shared/json/read.ts'
import { isSmall, writeJson } from '#shared/json/write.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { newAttachmentKey, newJobId } from '#shared/store/jobs.ts'

/** Maximum bytes of JSON inside a record. A larger body is stored in a blob (docs/internals/protocol.md, Records). */
export const BODY_BYTES_MAX = 64 * 1024

/** Characters of a body per blob write. Larger writes are cheaper, because each write waits for a thread. */
const CHARS_PER_WRITE = 512 * 1024

export type StoredBody = { readonly json: string } | { readonly blob: string }
export type DecodedBody = { readonly value: unknown; readonly bytes: number }

/**
 * Prepares a body once, for all records of its job. A body above {@link BODY_BYTES_MAX} is written into a blob under the job's id. The code that ends
 * the job deletes the blob.
 *
 * @returns The stored body, or a promise of it if the body is large, because writing a large body yields to the event loop
 */
export function storeBody(id: string, body: unknown, blobs: Blobs): StoredBody | Promise<StoredBody> {
  const json = isSmall(body) ? JSON.stringify(body) : undefined
  if (json !== undefined && json.length <= BODY_BYTES_MAX) return { json }
  return storeLarge(id, writeJson(body), blobs)
}

async function storeLarge(id: string, pieces: Generator<string>, blobs: Blobs): Promise<StoredBody> {
  const json = await runYielding(gathered(pieces))
  // `gathered` returns fewer than CHARS_PER_WRITE characters only at the end of the text. A shorter result is therefore the whole text.
  const isAll = json.length < CHARS_PER_WRITE
  if (isAll && json.length <= BODY_BYTES_MAX) return { json }
  await blobs.put(id, isAll ? Buffer.from(json) : bytesOf(json, pieces))
  return { blob: id }
}

async function* bytesOf(first: string, rest: Generator<string>): AsyncGenerator<Buffer> {
  for (let json = first; json !== ''; json = await runYielding(gathered(rest))) yield Buffer.from(json)
}

function* gathered(pieces: Generator<string>): Generator<undefined, string> {
  let json = ''
  while (json.length < CHARS_PER_WRITE) {
    const piece = pieces.next()
    if (piece.done) break
    json += piece.value
    yield
  }
  return json
}

export function recordOf(envelope: Omit<JobEnvelope, 'body' | 'blob'>, stored: StoredBody): Buffer {
  const head = JSON.stringify(envelope).slice(0, -1)
  const body = 'blob' in stored ? `"blob":${JSON.stringify(stored.blob)}` : `"body":${stored.json}`
  return Buffer.from(`${head},${body}}`)
}

/**
 * Reads the body of a job from its envelope or its blob. Parsing a large body yields to the event loop.
 *
 * @throws ServiceError `internal_error` if the blob is missing
 */
export async function fetchBody(
  { body, blob, history }: Pick<JobEnvelope, 'body' | 'blob' | 'history'>,
  blobs: Blobs,
): Promise<unknown> {
  const own = blob === undefined ? body : await readBlob(blob, blobs)
  if (!history) return own
  const { turns, ...request } = (own as { after_history: { turns: unknown[] } }).after_history
  const before: unknown[] = []
  for (const segment of history.segments)
    for (const turn of (await readBlob(segment.blob, blobs)) as unknown[]) before.push(turn)
  return { ...request, turns: [...turns.slice(0, history.at), ...before, ...turns.slice(history.at)] }
}

/** A body in memory. `release` must be called when its job has ended. */
export interface FetchedBody {
  readonly body: unknown
  release(): void
}

/**
 * Reads the body of a job as {@link fetchBody} does, within the memory budget of a worker. Slots limit the number of jobs, but a few large bodies
 * could still exhaust memory. A body that exceeds the remaining budget waits in order of arrival.
 *
 * @param budget Semaphore whose permits are bytes
 * @throws The signal's reason, or the errors of {@link fetchBody}
 */
export async function fetchBodyWithin(
  budget: Semaphore,
  job: Pick<JobEnvelope, 'body' | 'blob' | 'history'>,
  blobs: Blobs,
  signal: AbortSignal,
): Promise<FetchedBody> {
  // If the blob is missing, then its size counts as 0 here, and the error is left to `fetchBody`.
  const bytes = (await bytesOfBody(job, blobs).catch(() => 0)) * HELD_PER_BYTE
  if (bytes > 0) await budget.take(signal, bytes)
  let isHeld = true
  const release = () => {
    if (isHeld) budget.release(bytes)
    isHeld = false
  }
  try {
    return { body: await fetchBody(job, blobs), release }
  } catch (error) {
    release()
    throw error
  }
}

async function bytesOfBody({ blob, history }: Pick<JobEnvelope, 'blob' | 'history'>, blobs: Blobs): Promise<number> {
  const own = blob === undefined ? 0 : await blobs.size(blob)
  return (history?.segments ?? []).reduce((sum, { bytes }) => sum + bytes, own)
}

async function readBlob(blob: string, blobs: Blobs): Promise<unknown> {
  const value = await blobs.get(blob).catch((cause: unknown) => {
    // The error is reported as internal, because the caller did not cause it. Either the processes use different blob directories, or an operator
    // emptied the directory.
    throw new ServiceError('internal_error', 'The body of the request could not be read by its worker.', { cause })
  })
  return await runYielding(readJson(value))
}

/** Maximum characters of a caller's request that a job stores. A longer request is stored as its beginning only. */
const INPUT_CHARS_MAX = 64 * 1024
const BEGINNING_CHARS = 16 * 1024

/**
 * Returns the JSON text that a job stores of the request of its caller: the fields `input` and `input_cut` of GET /v1/jobs/{id}/input. The
 * internal form of the request cannot take its place, because decoding drops fields and adds defaults.
 */
export function inputText(sent: unknown): string | Promise<string> {
  return isSmall(sent) ? wholeInput(JSON.stringify(sent) ?? 'null') : runYielding(inputTextOf(writeJson(sent)))
}

function* inputTextOf(pieces: Generator<string>): Generator<undefined, string> {
  let text = ''
  let length = 0
  for (const piece of pieces) {
    if (length <= INPUT_CHARS_MAX) text += piece
    length += piece.length
    yield
  }
  if (length <= INPUT_CHARS_MAX) return wholeInput(text)
  return JSON.stringify({
    input: null,
    input_cut: { beginning: text.slice(0, BEGINNING_CHARS).toWellFormed(), length },
  })
}

function wholeInput(json: string): string {
  return `{"input":${json},"input_cut":null}`
}

export async function storeRequest(
  id: string,
  { body, attachments = [] }: { readonly body: unknown; readonly attachments?: readonly string[] | undefined },
  encode: EncodeContext,
  blobs: Blobs,
): Promise<StoredRequest> {
  const more = attachments.length > 0 ? { attachments: [...attachments] } : {}
  const stored = await storeBody(id, body, blobs)
  return 'blob' in stored ? { ...stored, ...more, encode } : { body, ...more, encode }
}

/**
 * Copies the attachments of a request, and returns the body with the keys of the copies. Each key is appended to `copies` before the copy is made,
 * so that the caller can delete all copies after a failure.
 */
export async function copyBody(request: StoredRequest, blobs: Blobs, copies: string[]): Promise<unknown> {
  const body = await fetchBody(request, blobs)
  const { attachments = [] } = request
  if (attachments.length === 0) return body
  const id = newJobId()
  const names = new Map(attachments.map((blob) => [blob, newAttachmentKey(id)]))
  for (const [from, to] of names) {
    copies.push(to)
    await blobs.copy(from, to)
  }
  return JSON.parse(JSON.stringify(body), (_key, value) => names.get(value) ?? value)
}
