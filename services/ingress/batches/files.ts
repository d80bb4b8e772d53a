import type { IncomingMessage } from 'node:http'
import { FileForm } from '#schemas/files.ts'
import { type FormBounds, type FormField, type FormFile, readForm } from '#services/ingress/body/multipart.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { fileObject, requireFiles } from '#services/ingress/calls/files.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { HELD_PER_BYTE } from '#shared/capacity/byte-budgets.ts'
import { isDefinitelyUndone } from '#shared/jobs/durable/durable.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { BATCH_WRAP_UP_MS } from '#shared/kinds/batch.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { BATCH_INPUT, type FileStore, newFileId } from '#shared/store/records.ts'
import { type Line, LineChecker, type LineProblem, LineSplitter } from './lines.ts'

/** Maximum form fields: `purpose`, the members of `expires_after`, and some fields that are ignored. */
const FIELDS_MAX = 32
const FIELD_BYTES_MAX = 4 * 1024
const FRAMING_BYTES_MAX = 64 * 1024
export const FILES_MAX = 10_000
const FILENAME_CHARS_MAX = 255

interface Upload {
  readonly fields: readonly FormField[]
  readonly file: {
    readonly id: string
    readonly filename: string
    readonly bytes: number
    problem?: LineProblem | undefined
  }
}

/**
 * Reads the form of `POST /v1/files`. The file is written to a blob while it arrives, and the blob is recorded in `call.uploads`. While the
 * file arrives, its lines are also checked as batch requests. Only the purpose `batch` requires this check, but the field `purpose` may
 * follow the file.
 *
 * @throws ServiceError for problems of the form, `request_too_large`, `missing_required_parameter`
 */
export async function readUpload(context: IngressContext, call: Call, req: IncomingMessage): Promise<Upload> {
  requireFiles(context)
  const { fileBytesMax, bodyStallMs } = context.config
  let held = 0
  const hold = (fields: number, line: number) => call.held.hold((fields + line) * HELD_PER_BYTE)
  const bounds: FormBounds = {
    bytesMax: fileBytesMax + FIELDS_MAX * FIELD_BYTES_MAX + FRAMING_BYTES_MAX,
    fieldsMax: FIELDS_MAX,
    fieldBytesMax: FIELD_BYTES_MAX,
    fieldsBytesMax: FIELDS_MAX * FIELD_BYTES_MAX,
    stallMs: bodyStallMs,
    onGrowth: (bytes) => {
      held = bytes
      hold(held, 0)
    },
  }
  let file: Upload['file'] | undefined
  let isTaken = false
  await call.storage.expect(Math.min(Number(req.headers['content-length'] ?? 0) || 0, fileBytesMax))
  const fields = await readForm(req, bounds, {
    isFile: (name, filename) => filename !== undefined || name === 'file',
    take: async (part) => {
      // The flag is set when the first file begins, so that a second file is refused. The variable `file` is set only after the
      // first file has arrived completely.
      if (part.name !== 'file' || isTaken) throw unexpected(part.name)
      isTaken = true
      file = await storeFile(context, call, part, (line) => hold(held, line))
    },
  })
  if (file) return { fields, file }
  throw new ServiceError('missing_required_parameter', "Missing required parameter: 'file'.", { param: 'file' })
}

export async function createFile(context: IngressContext, call: Call, body: unknown): Promise<void> {
  const files = requireFiles(context)
  const { fields, file } = body as Upload
  const { purpose, expires_after } = parseBody(FileForm, bodyOf(fields), 'openai')
  if (purpose === 'batch' && file.problem) throw refusalOf(file.problem)
  const { fileRetentionMs } = context.config
  const tenant = projectIdOf(call.key)
  const { id, filename, bytes } = file
  const keepMs = expires_after ? expires_after.seconds * 1_000 : fileRetentionMs
  const row = { id, tenant, purpose, filename, bytes, keepMs }
  const isKept = await files.create(row, { filesMax: FILES_MAX }).catch((error: unknown) => {
    // If the connection to the store was lost, then the row of the file may exist, and its blob is not deleted here. If there is no row, then the
    // blob sweep deletes the blob later.
    if (!isDefinitelyUndone(error)) call.uploads.delete(id)
    throw error
  })
  if (!isKept)
    throw new ServiceError(
      'insufficient_quota',
      `This project has the maximum of ${FILES_MAX} files. Delete some files.`,
    )
  call.uploads.delete(id)
  call.storage.stored()
  const kept = await files.find(tenant, id)
  if (!kept) throw new ServiceError('not_found', 'The file was deleted immediately after its upload.')
  await call.reply.whole(fileObject(kept))
}

async function storeFile(
  context: IngressContext,
  call: Call,
  { filename = '', bytes: source }: FormFile,
  hold: (bytes: number) => void,
): Promise<Upload['file']> {
  if (filename === '') {
    const message = "Invalid 'file': expected the file itself, as a part with a filename."
    throw new ServiceError('invalid_type', message, { param: 'file' })
  }
  const { fileBytesMax, bodyBytesMax } = context.config
  const id = newFileId()
  const lines = new LineReading(bodyBytesMax)
  let bytes = 0
  async function* checked(): AsyncGenerator<Buffer> {
    for await (const piece of source as AsyncIterable<Buffer>) {
      bytes += piece.length
      if (bytes > fileBytesMax) throw tooLarge(fileBytesMax)
      await call.storage.grow(piece.length)
      await runYielding(lines.push(piece))
      hold(lines.held)
      yield piece
    }
    await runYielding(lines.end())
  }
  call.uploads.add(id)
  await context.blobs.put(id, checked())
  return {
    id,
    filename: filename
      .slice(0, FILENAME_CHARS_MAX)
      .toWellFormed()
      .replaceAll(/\p{Cc}/gu, ' '),
    bytes,
    problem: lines.problem,
  }
}

class LineReading {
  readonly #splitter: LineSplitter
  readonly #checker: LineChecker
  problem: LineProblem | undefined

  constructor(lineBytesMax: number) {
    this.#splitter = new LineSplitter(lineBytesMax)
    this.#checker = new LineChecker({ dialect: 'requests', lineBytesMax })
  }

  get held(): number {
    return this.problem ? 0 : this.#splitter.held
  }

  *push(piece: Buffer): Generator<undefined, void> {
    if (!this.problem) yield* this.#check(this.#splitter.push(piece))
  }

  *end(): Generator<undefined, void> {
    if (!this.problem) yield* this.#check(this.#splitter.end())
    this.problem ??= this.#checker.end()
  }

  *#check(lines: Iterable<Line>): Generator<undefined, void> {
    for (const line of lines) {
      this.problem = yield* this.#checker.check(line)
      if (this.problem) return
      yield
    }
  }
}

/**
 * Converts form fields to a body. SDKs write `expires_after[anchor]=…`, and other clients write
 * `expires_after={"anchor":…}`. Invalid numbers stay text, which the schema refuses.
 */
function bodyOf(fields: readonly FormField[]): Record<string, unknown> {
  const body: Record<string, unknown> = {}
  for (const { name, value } of fields) {
    const [, member] = /^expires_after\[(anchor|seconds)\]$/.exec(name) ?? []
    if (member !== undefined) body.expires_after = { ...(body.expires_after as object | undefined), [member]: value }
    else if (name === 'purpose') body.purpose = value
    else if (name === 'expires_after') body.expires_after = objectOf(value)
  }
  return body
}

function objectOf(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

function refusalOf({ line, message, param }: LineProblem): ServiceError {
  const field = param === null || message.includes(param.split('.').at(-1) ?? '') ? '' : `, '${param}'`
  const text = line === null ? message : `Line ${line}${field}: ${message}`
  return new ServiceError('invalid_value', text, { param: 'file' })
}

function unexpected(name: string): ServiceError {
  const param = excerpt(name)
  return new ServiceError('invalid_value', `Unexpected file '${param}': send exactly one file, as 'file'.`, { param })
}

function tooLarge(bytesMax: number): ServiceError {
  return new ServiceError('request_too_large', `The file is larger than the ${bytesMax} bytes the service accepts.`, {
    param: 'file',
  })
}

interface BatchInput {
  readonly input: string
  readonly bytes: number
  readonly windowMs: number
}

/**
 * Creates a file row for the input of a batch, so that the input counts against the maximum number of files of its project. The row is deleted when
 * the batch completes, or when its job is deleted or expires.
 *
 * @throws ServiceError `insufficient_quota` if the project has the maximum number of files and batches
 */
export async function countInput(
  context: IngressContext,
  tenant: string,
  { input: id, bytes, windowMs }: BatchInput,
): Promise<void> {
  const { jobRetentionMs } = context.config
  const keepMs = windowMs + BATCH_WRAP_UP_MS + jobRetentionMs
  const row = { id, tenant, purpose: BATCH_INPUT, filename: '', bytes, keepMs }
  if (await requireFiles(context).create(row, { filesMax: FILES_MAX })) return
  const message = `This project has the maximum of ${FILES_MAX} files and batches. Delete some files, or wait until a batch ends.`
  throw new ServiceError('insufficient_quota', message)
}

export async function dropInput(
  { blobs, files }: { readonly blobs: Blobs; readonly files: FileStore },
  tenant: string,
  input: string,
): Promise<void> {
  await blobs.delete(input)
  await files.delete(tenant, input)
}
