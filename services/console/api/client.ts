import { computed, signal } from '@preact/signals'
import { EventSourceParserStream } from 'eventsource-parser/stream'
import type { z } from 'zod'
import type {
  DeadLetterListAnswer,
  DeliveryAnswer,
  FindingListAnswer,
  ModelStateListAnswer,
  PauseListAnswer,
  PoolListAnswer,
  WorkerAnswer,
} from '#schemas/answers/admin.ts'
import type { AdminBatchAnswer, BatchAnswer } from '#schemas/answers/batches.ts'
import type { JobAnswer, JobInputAnswer, OperatorJobAnswer, StepListAnswer } from '#schemas/answers/jobs.ts'
import type { KeyAnswer, OwnKeyAnswer, ProjectAnswer } from '#schemas/answers/keys.ts'
import type { ModelListAnswer } from '#schemas/answers/models.ts'
import { syncClock } from './clock.ts'

export type Job = z.infer<typeof JobAnswer>
/** A durable job as the admin API returns it: without input and output. */
export type OperatorJob = z.infer<typeof OperatorJobAnswer>
export type AnyJob = Job | OperatorJob
/** A batch. Only the admin API returns the project. */
export type Batch = z.infer<typeof BatchAnswer> &
  Partial<z.infer<typeof AdminBatchAnswer>> & { readonly cost_usd?: number | null }
export type JobInput = z.infer<typeof JobInputAnswer>
export type StepPage = z.infer<typeof StepListAnswer>
export type Step = StepPage['data'][number]
export type ModelServers = z.infer<typeof ModelStateListAnswer>['data'][number]
export type Pool = z.infer<typeof PoolListAnswer>['data'][number]
export type Worker = z.infer<typeof WorkerAnswer>
export type Pause = z.infer<typeof PauseListAnswer>['data'][number]
export type DeadLetter = z.infer<typeof DeadLetterListAnswer>['data'][number]
export type Finding = z.infer<typeof FindingListAnswer>['data'][number]
export type Model = z.infer<typeof ModelListAnswer>['data'][number]

export type Delivery = z.infer<typeof DeliveryAnswer>
export type ApiKey = z.infer<typeof KeyAnswer>
type OwnKey = z.infer<typeof OwnKeyAnswer>
/** A group of keys that share limits and a budget. */
export type Project = z.infer<typeof ProjectAnswer>

export interface Page<Item> {
  readonly data: readonly Item[]
  readonly last_id: string | null
  readonly has_more: boolean
}

const KEY = 'sluice-key'
const OWN_KEY = 'sluice-own-key'
/** Set in session storage after sign-out, so that a reload does not sign the tab in again with the key of another tab. */
const SIGNED_OUT = 'sluice-signed-out'
/** Maximum time in which another tab must send its key. */
const OTHER_TAB_MS = 300

/** The API key of this tab, or an empty string before sign-in. Session storage keeps it until the tab is closed. */
const apiKey = signal(sessionStorage.getItem(KEY) ?? '')
/**
 * The permissions of the key. A reload of the page begins with the copy in session storage, so that the menu is complete
 * at once. Then {@link loadOwnKey} reads the permissions again.
 */
export const ownKey = signal<OwnKey | undefined>(remembered<OwnKey>(OWN_KEY))
export const isOperator = signal<boolean | undefined>(ownKey.value?.scopes.includes('admin'))
export const canCall = computed(() => ownKey.value?.scopes.includes('calls'))
export const signInError = signal('')

export const isSignedIn = computed(() => apiKey.value !== '')

/** Returns a parsed value of the session storage. Undefined if the value is missing or not valid JSON. */
export function remembered<T>(name: string): T | undefined {
  try {
    return (JSON.parse(sessionStorage.getItem(name) ?? 'null') as T | null) ?? undefined
  } catch {
    return undefined
  }
}

function signIn(key: string, own: OwnKey): void {
  sessionStorage.removeItem(SIGNED_OUT)
  sessionStorage.setItem(KEY, key)
  setOwnKey(own)
  signInError.value = ''
  apiKey.value = key
}

function setOwnKey(own: OwnKey): void {
  sessionStorage.setItem(OWN_KEY, JSON.stringify(own))
  ownKey.value = own
  isOperator.value = own.scopes.includes('admin')
}

export function signOut(why = ''): void {
  sessionStorage.clear()
  sessionStorage.setItem(SIGNED_OUT, 'true')
  signInError.value = why
  isOperator.value = undefined
  ownKey.value = undefined
  apiKey.value = ''
}

export class ApiFailure extends Error {
  readonly status: number

  constructor(status: number, message: string) {
    super(message)
    this.status = status
  }
}

interface RequestOptions {
  readonly method?: 'GET' | 'POST' | 'DELETE'
  readonly body?: unknown
  readonly signal?: AbortSignal
  readonly headers?: Readonly<Record<string, string>>
  /** API key of the request. Default: the key of the session. */
  readonly key?: string
  /** Error statuses that are returned to the caller as a response instead of an error. */
  readonly expects?: readonly number[]
}

/**
 * Timeout of a GET in ms. Without a timeout, a lost response would stop a page, because each poll waits for the
 * response to the previous poll.
 */
const READ_TIMEOUT_MS = 15_000
const RETRY_DELAY_MS = 2_000

/**
 * Sends a request with the key of this tab. If the service rejects this key with 401, then the tab is signed out.
 *
 * @throws ApiFailure for an error status. TypeError without a connection
 */
export async function fetchApi(
  path: string,
  { method = 'GET', body, signal, headers, key, expects = [] }: RequestOptions = {},
): Promise<Response> {
  const isForm = body instanceof FormData
  const sentAtMs = Date.now()
  const response = await fetch(path, {
    method,
    headers: {
      authorization: `Bearer ${key ?? apiKey.value}`,
      ...(body !== undefined && !isForm && { 'content-type': 'application/json' }),
      ...headers,
    },
    ...(body !== undefined && { body: isForm ? body : JSON.stringify(body) }),
    ...(signal && { signal }),
  })
  syncClock(response.headers.get('date'), sentAtMs)
  if (response.ok || expects.includes(response.status)) return response
  const failure = await failureOf(response)
  if (failure.status === 401 && key === undefined) signOut(failure.message)
  throw failure
}

export async function fetchJson<T>(path: string, options: RequestOptions = {}): Promise<T> {
  const { method = 'GET', signal } = options
  if (method !== 'GET') return (await (await fetchApi(path, options)).json()) as T
  const timeout = new AbortController()
  const timer = setTimeout(() => timeout.abort(new DOMException('no response', 'TimeoutError')), READ_TIMEOUT_MS)
  const either = signal ? AbortSignal.any([signal, timeout.signal]) : timeout.signal
  const response = await fetchApi(path, { ...options, signal: either }).finally(() => clearTimeout(timer))
  return (await response.json()) as T
}

export async function trySignIn(key: string): Promise<void> {
  signIn(key, await fetchJson<OwnKey>('/v1/key', { key }))
}

interface KeyMessage {
  /** Key of the sending tab. Undefined in a request for the key. */
  readonly key?: string
}

/**
 * Signs a new tab in with the key of another open tab of this origin, and sends the key of this tab to later tabs. The key is sent over a
 * `BroadcastChannel`, which stores nothing. A signed-out tab sends no key. Without an answer in time, the tab stays signed out.
 */
export async function shareKey(): Promise<void> {
  const channel = new BroadcastChannel(KEY)
  const received = Promise.withResolvers<string>()
  channel.addEventListener('message', (event: Event) => {
    const { key } = (event as Event & { readonly data: KeyMessage }).data
    if (key !== undefined) received.resolve(key)
    else if (apiKey.value !== '') channel.postMessage({ key: apiKey.value } satisfies KeyMessage)
  })
  if (apiKey.value !== '' || sessionStorage.getItem(SIGNED_OUT)) return
  channel.postMessage({} satisfies KeyMessage)
  setTimeout(() => received.resolve(''), OTHER_TAB_MS)
  const key = await received.promise
  // If the service rejects the key, then the page for the sign-in follows.
  if (key !== '') await trySignIn(key).catch(() => {})
}

/**
 * Reads the permissions of the key again after a reload of the page. Retries until the service responds. Until then, the
 * copy in session storage applies. Without a copy, the key is treated as one without the `admin` scope.
 */
export async function loadOwnKey(): Promise<void> {
  while (apiKey.value) {
    const isLoaded = await fetchJson<OwnKey>('/v1/key').then(
      (own) => {
        setOwnKey(own)
        return true
      },
      () => false,
    )
    if (isLoaded || !apiKey.value) return
    isOperator.value ??= false
    await new Promise((resolve) => setTimeout(resolve, RETRY_DELAY_MS))
  }
}

export function messageOf(error: unknown): string {
  if (error instanceof ApiFailure) return error.message
  const isUnreachable = error instanceof TypeError || (error instanceof DOMException && error.name === 'TimeoutError')
  if (isUnreachable) return 'The service is not responding; it may be restarting.'
  if (error instanceof SyntaxError) return 'Unexpected response; a proxy may have intercepted the request.'
  return String(error)
}

async function failureOf(response: Response): Promise<ApiFailure> {
  const text = await response.text()
  try {
    const { error } = JSON.parse(text) as { error: { message: string } }
    return new ApiFailure(response.status, error.message)
  } catch {
    return new ApiFailure(response.status, `The service returned HTTP ${response.status}.`)
  }
}

const PAGE_SIZE = 50
/** Maximum number of pages, because every refresh requests all loaded pages again. */
const PAGES_MAX = 10

/** A paginated list of the API: the pages that the user has loaded so far, in the order of the API. */
export class Pages<Item extends { readonly id: string; readonly ended_at?: number | null }> {
  readonly items = signal<readonly Item[]>([])
  /** The first page with its further fields. Undefined until loaded. */
  readonly first = signal<Page<Item> | undefined>(undefined)
  readonly isLoaded = signal(false)
  readonly hasMore = signal(false)
  readonly problem = signal('')
  readonly #path: string
  readonly #query: Readonly<Record<string, string>>
  #pages = 1

  constructor(path: string, query: Readonly<Record<string, string>>) {
    this.#path = path
    this.#query = query
  }

  async refresh(abort?: AbortSignal): Promise<void> {
    try {
      // If an item is added between the requests of two pages, then the last item of the first page is also on the
      // second page. The map keeps such an item once. Rows of the request log may share an id, so the key of the map also
      // contains the time of their end.
      const found = new Map<string, Item>()
      let after = ''
      let isMore = true
      let first: Page<Item> | undefined
      for (let nth = 0; isMore && nth < this.#pages; nth++) {
        const page = await this.#page(after, abort)
        if (nth === 0) first = page
        for (const item of page.data) found.set(`${item.id} ${item.ended_at ?? ''}`, item)
        after = page.last_id ?? ''
        isMore = page.has_more && after !== ''
      }
      this.items.value = [...found.values()]
      this.first.value = first
      this.hasMore.value = isMore && this.#pages < PAGES_MAX
      this.isLoaded.value = true
      this.problem.value = ''
    } catch (error) {
      if (!abort?.aborted) this.problem.value = messageOf(error)
    }
  }

  async more(): Promise<void> {
    this.#pages = Math.min(PAGES_MAX, this.#pages + 1)
    await this.refresh()
  }

  async #page(after: string, signal?: AbortSignal): Promise<Page<Item>> {
    const params = Object.entries({ limit: String(PAGE_SIZE), ...this.#query, after }).filter(
      ([, value]) => value !== '',
    )
    return await fetchJson(`${this.#path}?${new URLSearchParams(params)}`, signal ? { signal } : {})
  }
}

/**
 * Yields the parsed data of each server-sent event, until the stream ends or sends `[DONE]`.
 *
 * @param onComment Called with each comment, such as the queue position of a waiting call
 */
export async function* eventsOf(
  response: Response,
  onComment: (text: string) => void = () => {},
): AsyncGenerator<Record<string, unknown>> {
  if (!response.body) return
  const parser = new EventSourceParserStream({ onComment })
  const events = response.body.pipeThrough(new TextDecoderStream() as never).pipeThrough(parser)
  const reader = events.getReader()
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done || value.data === '[DONE]') return
      yield JSON.parse(value.data) as Record<string, unknown>
    }
  } finally {
    await reader.cancel().catch(() => {})
  }
}

/**
 * Last key for which the service refused the list of models with 403. The list is not requested again with this key.
 */
let rejectedKey = ''

/**
 * Returns the models that the key can call, one entry per id and alias. Empty for a key with only the `admin` scope.
 */
export async function fetchModels(abort: AbortSignal): Promise<readonly Model[]> {
  if (apiKey.value === rejectedKey || canCall.value === false) return []
  return await fetchJson<Page<Model>>('/v1/models', { signal: abort }).then(
    ({ data }) => data,
    (error: unknown) => {
      if (!(error instanceof ApiFailure) || error.status !== 403) throw error
      rejectedKey = apiKey.value
      return []
    },
  )
}
