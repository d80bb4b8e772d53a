/**
 * The request log: one row per ended call, with the durable jobs that calls, batches and composed jobs created.
 *
 * 1. The ingress records a call when its response has closed and its handler has returned. Rows are written in batches.
 * 2. If the call created a durable job, then the job is recorded instead, in the commit that enters its usage into the ledger.
 * 3. Rows are deleted after a time, and from the oldest on if there are too many.
 *
 * The sums over the rows of a period equal those of the ledger, except for rows that were dropped while the store was unreachable.
 */

export interface RequestRow {
  /** Request id of the call. The job id for a child job, and for a job that was redriven. */
  readonly id: string
  readonly startedAtMs: number
  readonly endedAtMs: number
  /** Empty, like `keyId`, if the call had no valid key. */
  readonly project: string
  readonly keyId: string
  /** Path of the route, such as `/v1/chat/completions`. For an unknown path: the beginning of the path. */
  readonly endpoint: string
  /** Null if the call was refused early or creates no job. */
  readonly kind: string | null
  /** Model of the job. For a refused call: the name that the caller sent, if the body was read. */
  readonly model: string | null
  /** Boot id of the process that ran the last attempt. */
  readonly worker: string | null
  /**
   * Upstream server of the last attempt, as an index in `base_urls` of its model. If a fallback ran the call, then its name and a slash precede the
   * index.
   */
  readonly server: string | null
  /** HTTP status; {@link CANCELLED_STATUS} if the caller left or cancelled. */
  readonly status: number
  readonly errorCode: string | null
  /** Message and field of the error that the caller received, in bounded length. */
  readonly errorMessage: string | null
  readonly errorParam: string | null
  readonly queueMs: number | null
  /** Time from acceptance to the first output. Null for durable jobs. */
  readonly firstOutputMs: number | null
  readonly durationMs: number
  readonly inputTokens: number
  readonly cachedInputTokens: number
  readonly outputTokens: number
  readonly costNanos: number
  readonly attempts: number
  /** Id of the durable job. Null for attached calls. */
  readonly jobId: string | null
  /** Job id of the batch to which a line belongs. */
  readonly batchId: string | null
  readonly traceId: string | null
  readonly userAgent: string | null
}

/** Bodies of one attached call, as JSON texts of bounded length. */
export interface RequestBodies {
  /** Request id of the call. */
  readonly id: string
  readonly atMs: number
  /** Time of the deletion, if the key or the project has its own retention. Null: the retention is that of {@link LogBounds}. */
  readonly expiresAtMs: number | null
  readonly request: string
  /** Null if the call failed, or if its answer was too large to record. */
  readonly answer: string | null
  /** First characters of the prompt and of the answer. Null if the body has no text. */
  readonly promptPreview: string | null
  readonly answerPreview: string | null
}

export type RequestPreview = Pick<RequestBodies, 'id' | 'promptPreview' | 'answerPreview'>

/** Status of a call that its caller cancelled or left, as nginx logs it. */
export const CANCELLED_STATUS = 499

/**
 * Whether a request failed: its caller received an error. A refused call has failed, but a cancelled call has not. The console and the command line
 * count failures by this definition. Attempts, of which a request may have several, are counted separately.
 */
export function isFailedStatus(status: number): boolean {
  return status >= 400 && status !== CANCELLED_STATUS
}

/** Position in the list of requests, which is sorted by end and then by number. */
export interface RequestCursor {
  readonly endedAtMs: number
  readonly n: number
}

/** Maximum rows per page. A query with a higher limit gets this number of rows. */
export const REQUESTS_MAX = 100

export interface RequestQuery {
  readonly project?: string | undefined
  readonly keyId?: string | undefined
  readonly model?: string | undefined
  readonly endpoint?: string | undefined
  readonly server?: string | undefined
  /** First and last HTTP status of a range. A range includes cancelled requests only if it begins with their status. */
  readonly statuses?: readonly [number, number] | undefined
  readonly errorCode?: string | undefined
  readonly jobId?: string | undefined
  readonly batchId?: string | undefined
  readonly traceId?: string | undefined
  /** Requests that ended at this time or later, and before `untilMs`. */
  readonly sinceMs?: number | undefined
  readonly untilMs?: number | undefined
  readonly durationMsMin?: number | undefined
  readonly after?: RequestCursor | undefined
  readonly limit: number
}

export interface RequestPage {
  readonly rows: readonly RequestRow[]
  /** Position of the next page. Null after the last page. A page may have fewer rows than the limit and still have a next page. */
  readonly next: RequestCursor | null
}

export interface RequestBounds {
  readonly keepMs: number
  /** Approximate maximum rows of the log. Gaps in the numbers of rows count as rows. */
  readonly rowsMax: number
}

export interface LogBounds extends RequestBounds {
  /** Bounds of the recorded bodies. Default: none. */
  readonly bodies?: RequestBounds
}

export const UNBOUNDED: RequestBounds = { keepMs: Number.MAX_SAFE_INTEGER, rowsMax: Number.MAX_SAFE_INTEGER }

/** Calls with equal outcome among the recent rows of the log. */
export interface RequestOutcome {
  readonly project: string
  readonly model: string | null
  readonly status: number
  readonly errorCode: string | null
  readonly calls: number
}

export interface RequestLog {
  /** Adds rows. A row with the id and the end of a stored row is ignored, so a batch whose answer was lost may be sent again. */
  add(rows: readonly RequestRow[]): Promise<void>
  /**
   * A page of requests, newest first. Each page reads a bounded number of rows. If few of these match, then the page is short, and the
   * next page continues.
   */
  list(query: RequestQuery): Promise<RequestPage>
  /** The last request with this id. @param project Only requests of this project. If undefined, of any project */
  find(id: string, project?: string): Promise<RequestRow | undefined>
  /** Outcomes of the newest 5,000 calls that ended at `sinceMs` or later. @param project Only this project. If undefined, all projects */
  outcomes(sinceMs: number, project?: string): Promise<RequestOutcome[]>
  addBodies(rows: readonly RequestBodies[]): Promise<void>
  findBodies(id: string): Promise<RequestBodies | undefined>
  /** Previews of the requests whose bodies are recorded, in any order. @param ids At most {@link REQUESTS_MAX} request ids */
  previews(ids: readonly string[]): Promise<RequestPreview[]>
}

export interface HasRequests {
  readonly requests: RequestLog
}
