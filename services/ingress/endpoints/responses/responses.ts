import type { DurableJob } from '#schemas/durable-job.ts'
import type { SharedHistory } from '#schemas/job.ts'
import { type CodeFile, RUN_FILES_BYTES_MAX, RUN_FILES_MAX } from '#schemas/kinds/code.ts'
import type { GenerateRequest } from '#schemas/kinds/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { CodeInterpreterTool, InputTokensRequest, ITEMS_MAX, ResponsesRequest } from '#schemas/responses/request.ts'
import { refuse } from '#services/ingress/body/decode.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import { requireEndpoint } from '#services/ingress/callers/keys.ts'
import type { Caller, IngressContext, JobEndpoint } from '#services/ingress/calls/call.ts'
import {
  affinityField,
  getModel,
  requireNativeUrls,
  upstreamFields,
  userIdOf,
} from '#services/ingress/calls/endpoint.ts'
import { getFile, requireFiles } from '#services/ingress/calls/files.ts'
import { boundMetadata } from '#services/ingress/calls/job-options.ts'
import { dialectOf } from '#shared/engines/adapt.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { countTokens, generate } from '#shared/kinds/generate/generate.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { beginResponse, readContext, requireCapacity, storeItems } from './conversations.ts'
import { decodeResponses } from './decode.ts'
import { hostedTools } from './hosted-tools.ts'
import { storedItems } from './item-form.ts'
import { formOf, RESPONSES_PATH, storedAnswers } from './stored.ts'

/**
 * Maximum bytes of a file name with its extension. File systems allow 255 bytes. The remaining bytes are reserved for a number that makes the name
 * unique.
 */
const NAME_BYTES_MAX = 200
const ENDING_CHARS_MAX = 16

/**
 * Parts that are removed from file names: directories of any operating system, and invisible characters.
 *
 * Invisible characters can break or reverse the prompt's line that contains the name, or display another name than the model reads. Zero-width
 * joiners stay, because words and emoji need them.
 */
const NOT_A_NAME = /^.*[/\\]|[\p{Cc}\p{Zl}\p{Zp}]|(?![\u200c\u200d])\p{Cf}/gsu

const COUNT_TIMEOUT_MS = 30_000

export const responses: JobEndpoint = {
  path: RESPONSES_PATH,
  async describe() {
    const { ResponseAnswer } = await import('#schemas/answers/responses.ts')
    return {
      id: 'createResponse',
      tag: 'Responses',
      summary: 'Create a response',
      description: 'Supports streaming, background processing, hosted tools and conversations.',
      guide: 'responses',
      body: { ResponseRequest: ResponsesRequest },
      answer: {
        description: 'The response. With `stream: true`, its events.',
        json: { Response: ResponseAnswer },
        events: null,
      },
    }
  },
  format: 'openai',
  kind: generate,
  fields: ResponsesRequest.shape,
  canStream: () => true,
  isStored: isKept,
  stored: storedAnswers,
  async prepare(context, caller, body) {
    const asked = parse(ResponsesRequest, body)
    const { request, conversation, input, history } = await decode(context, caller, asked, isKept(context, body))
    const form = formOf(asked, request, isKept(context, body))
    const { model, stream } = request
    const encode = { include_usage: true, responses: form }
    const metadata = asked.metadata ?? undefined
    const onCreated = conversation && ((job: DurableJob) => beginResponse(context, conversation, input, job))
    const { requestTimeoutMs: timeoutMs } = context.config
    const userId = request.hosted?.tools.includes('code_interpreter') ? userIdOf(caller) : undefined
    const { named } = request
    const prepared = { model, named, body: request, history, userId, stream, timeoutMs, encode, metadata }
    return { ...prepared, ...(onCreated && { onCreated }) }
  },
}

export const responsesCount: JobEndpoint = {
  path: `${RESPONSES_PATH}/input_tokens`,
  async describe() {
    const { InputTokensAnswer: InputTokens } = await import('#schemas/answers/responses.ts')
    return {
      id: 'countInputTokens',
      tag: 'Responses',
      summary: 'Count the input tokens of a response request',
      guide: 'responses',
      body: { InputTokensRequest },
      answer: { description: 'The number of input tokens.', json: { InputTokens } },
    }
  },
  format: 'openai',
  kind: countTokens,
  async prepare(context, caller, body) {
    const asked = parse(InputTokensRequest, body)
    const { request } = await decode(context, caller, asked, false)
    return { model: request.model, body: request, stream: false, timeoutMs: COUNT_TIMEOUT_MS }
  },
}

/**
 * Checks the shape of a body except for its items, which may be very many. Each item is checked later, when it is
 * decoded with event-loop yields.
 */
function parse(schema: typeof ResponsesRequest | typeof InputTokensRequest, body: unknown): ResponsesRequest {
  const { input } = (body ?? {}) as { input?: unknown }
  const isList = Array.isArray(input)
  if (isList && input.length > ITEMS_MAX) {
    const message = `Invalid 'input': array too long. Expected an array with maximum length ${ITEMS_MAX}, but got an array with length ${input.length} instead.`
    refuse('array_above_max_length', 'input', message)
  }
  const head = isList ? { ...(body as object), input: [] } : body
  const asked: ResponsesRequest = parseBody(schema as typeof ResponsesRequest, head, 'openai')
  requireConsistent(asked)
  return isList ? { ...asked, input } : asked
}

/** Whether the response is stored. Without a job store, no response is stored, and answers contain `store: false`. */
function isKept(context: IngressContext, body: unknown): boolean {
  return context.durable !== undefined && (body as { store?: unknown } | null)?.store !== false
}

/**
 * @param keeps True if the response is stored. Sluice runs hosted tools, such as web search, only for stored responses,
 * because the calls of these tools must survive the loss of a worker
 */
async function decode(context: IngressContext, caller: Caller, asked: ResponsesRequest, keeps: boolean) {
  const model = getModel(context, caller, asked.model, 'inference')
  requireGrantable(asked, model)
  const hosted = keeps ? hostedTools(context, caller, asked, dialectOf({}, model) === 'responses') : undefined
  if (asked.conversation) requireEndpoint(caller.key, '/v1/conversations')
  const before = await readContext(context, projectIdOf(caller.key), asked)
  const decoding = decodeResponses(asked, before, {
    getModel: (id) => getModel(context, caller, id, 'inference'),
    strictTurns: false,
    remoteImages: context.config.remoteImages,
    isHosting: hosted !== undefined,
  })
  const partsBefore = before.turns.map(({ parts }) => parts.length)
  const decoded = await runYielding(decoding)
  const request = await withHosted(context, caller, asked, decoded, hosted)
  const affinity = affinityField(context, caller, model, request, before.conversation?.id)
  Object.assign(request, upstreamFields(caller, model, asked.model), affinity)
  await requireNativeUrls(request, context.config.remoteImages)
  const { conversation } = before
  if (!conversation) return { request, input: [], history: sharedOf(asked, before, partsBefore, request) }
  const input = await runYielding(storedItems(inputOf(asked), 'input', before.referenced, 'conversation'))
  requireCapacity([...conversation.items, ...input], 'conversation')
  // The storage quota is checked here, before the job is created. The reservation ends at once, because `beginResponse`
  // reserves the space later.
  using _held = await storeItems(context, projectIdOf(caller.key), input)
  return { request, conversation, input }
}

/**
 * Returns the stored segments (blobs of earlier turns) with which the prompt begins. Empty if decoding changed the turns of the
 * previous response, because the prompt then differs from the segments.
 */
function sharedOf(
  { previous_response_id: id, instructions }: ResponsesRequest,
  { turns, segments = [] }: Awaited<ReturnType<typeof readContext>>,
  partsBefore: readonly number[],
  request: GenerateRequest,
): SharedHistory | undefined {
  if (id == null) return undefined
  const at = instructions ? 1 : 0
  const count = segments.reduce((sum, segment) => sum + segment.turns, 0)
  const isSame = turns
    .slice(0, count)
    .every((turn, i) => request.turns[at + i] === turn && turn.parts.length === partsBefore[i])
  return { at, segments: isSame ? segments : [] }
}

async function withHosted(
  context: IngressContext,
  caller: Caller,
  asked: ResponsesRequest,
  decoded: GenerateRequest,
  hosted: GenerateRequest['hosted'],
) {
  const files = hosted ? await codeFiles(context, caller, asked.tools) : []
  if (!hosted || files.length === 0) return { ...decoded, hosted }
  const tools = decoded.tools.map((tool) =>
    tool.name === 'code_interpreter' ? { ...tool, description: `${tool.description}${describeFiles(files)}` } : tool,
  )
  return { ...decoded, tools, hosted: { ...hosted, files } }
}

function inputOf({ input }: Pick<ResponsesRequest, 'input'>): readonly unknown[] {
  return typeof input === 'string' ? [{ role: 'user', content: input }] : (input ?? [])
}

/**
 * Fields that change the answer and that only an upstream of the Responses API supports, each with advice for the error
 * message.
 */
const UNSUPPORTED = {
  prompt: "Send 'instructions' and 'input' instead.",
  context_management: 'Omit the field, and set truncation to auto.',
  moderation: 'Call /v1/moderations instead.',
} as const

function requireGrantable(asked: ResponsesRequest, model: ModelConfig): void {
  if (dialectOf({}, model) === 'responses') return
  for (const [field, instead] of Object.entries(UNSUPPORTED)) {
    if (asked[field as keyof typeof UNSUPPORTED] == null) continue
    const message = `Unsupported parameter: '${field}' is not supported by the model '${model.id}'. ${instead}`
    refuse('unsupported_parameter', field, message)
  }
}

function requireConsistent(asked: ResponsesRequest): void {
  if (asked.background && asked.store === false) {
    refuse('invalid_value', 'background', "A background response is stored, so 'store' cannot be false.")
  }
  if (asked.conversation && asked.previous_response_id) {
    const message =
      "'conversation' and 'previous_response_id' cannot be combined, because each one selects the earlier turns."
    refuse('invalid_value', 'conversation', message)
  }
  if (asked.conversation && asked.store === false) {
    refuse('invalid_value', 'conversation', "A response of a conversation is stored, so 'store' cannot be false.")
  }
  boundMetadata(asked.metadata ?? undefined)
}

/**
 * Returns the files of the request, which are placed into the working directory of the code tool under unique names.
 *
 * @throws ServiceError `not_found` for a file of another project. `array_above_max_length`. `invalid_value` if the
 * files are too large
 */
async function codeFiles(
  context: IngressContext,
  { key }: Pick<Caller, 'key'>,
  tools: ResponsesRequest['tools'],
): Promise<CodeFile[]> {
  const files: CodeFile[] = []
  let bytes = 0
  for (const { id, param } of askedFor(tools ?? [])) {
    const file = await getFile(requireFiles(context), projectIdOf(key), id, param)
    bytes += file.bytes
    if (bytes > RUN_FILES_BYTES_MAX) {
      const message = `The files of a code tool may have at most ${RUN_FILES_BYTES_MAX} bytes together; with this file, the sum is ${bytes}.`
      refuse('invalid_value', param, message)
    }
    const taken = new Set(files.map(({ name }) => name))
    files.push({ id, name: freeName(nameOf(file.filename), taken), bytes: file.bytes })
  }
  return files
}

function describeFiles(files: readonly CodeFile[]): string {
  const shown = files.map(({ name, bytes }) => `${JSON.stringify(name)} (${bytes} bytes)`)
  return ` At the start of each call the working directory has these files: ${shown.join(', ')}.`
}

function askedFor(tools: NonNullable<ResponsesRequest['tools']>) {
  const asked = tools.flatMap((tool, at) => {
    const { container } = CodeInterpreterTool.safeParse(tool).data ?? {}
    const ids = typeof container === 'object' ? (container?.file_ids ?? []) : []
    const param = `tools[${at}].container.file_ids`
    if (ids.length > RUN_FILES_MAX) {
      refuse('array_above_max_length', param, `A code tool may have at most ${RUN_FILES_MAX} files; got ${ids.length}.`)
    }
    return ids.map((id, nth) => ({ id, param: `${param}[${nth}]` }))
  })
  return asked.filter(({ id }, at) => asked.findIndex((other) => other.id === id) === at)
}

function nameOf(filename: string): string {
  // Names that look equal may differ in their bytes. The Unicode normal form NFC makes the bytes of such names equal. A
  // number is then added to the second name.
  const name = filename.replaceAll(NOT_A_NAME, '').trim().normalize('NFC')
  if (name === '' || /^\.+$/.test(name)) return 'file'
  const [stem, ending] = split(name)
  return cut(stem, NAME_BYTES_MAX - Buffer.byteLength(ending)) + ending
}

function cut(text: string, bytesMax: number): string {
  let bytes = 0
  let kept = ''
  for (const character of text.toWellFormed()) {
    bytes += Buffer.byteLength(character)
    if (bytes > bytesMax) break
    kept += character
  }
  return kept
}

function freeName(name: string, taken: ReadonlySet<string>): string {
  const [stem, ending] = split(name)
  for (let nth = 2, free = name; ; nth++) {
    if (!taken.has(free)) return free
    free = `${stem}_${nth}${ending}`
  }
}

function split(name: string): [stem: string, ending: string] {
  const dot = name.lastIndexOf('.')
  return dot <= 0 || name.length - dot > ENDING_CHARS_MAX ? [name, ''] : [name.slice(0, dot), name.slice(dot)]
}
