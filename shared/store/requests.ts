/**
 * The request log: one row per ended call, with the durable jobs that calls, batches and composed jobs created.
 *
 * 1. The ingress records a call when its response has closed and its handler has returned. Rows are written in batches.
 * 2. If the call created a durable job, then no row is written for the call. The job gets a row when its usage is entered into the ledger.
 * 3. Rows are deleted after the log's retention. If the log has too many rows, then the oldest are deleted first.
 *
 * The sums over the rows of a period equal those of the usage ledger, except for rows that were dropped while the store was unreachable. The row of a
 * batch has the tokens and the cost of its lines. A sum must therefore include either the batch or its lines.
 */

export interface RequestRow {
  /** Request id of the call. For a child job or a redriven job, which no call submitted directly, the job id. */
  readonly id: string
  readonly startedAtMs: number
  readonly endedAtMs: number
  /** Empty if the call had no valid key. In this case `keyId` is empty too. */
  readonly project: string
  readonly keyId: string
  /** Path of the route, such as `/v1/chat/completions`. For an unknown path: the beginning of the path. */
  readonly endpoint: string
  /** Kind of the job. Null if the call was refused early or creates no job. */
  readonly kind: string | null
  /** Model of the job, or of the calls of a batch. For a refused call: the name that the caller sent, if the body was read. */
  readonly model: string | null
  /** Id (`boot`) of the process that ran the last attempt. */
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
  /** Last message of the upstream server about a failed attempt. */
  readonly upstreamMessage: string | null
  /** JSON array of `FailedAttempt`. Null if no attempt failed. */
  readonly failedAttempts: string | null
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
  /** Number of the retry by the SDK of the caller. Null for the first request of a call, and if the SDK does not state the number. */
  readonly sdkRetry: number | null
  /** Names of body fields that the API does not define, separated by commas. Null if there are none, and for durable jobs. */
  readonly unknownParameters: string | null
  /** Requested format that the answer does not have: `json` or `tool_call`. Null if the answer has it, or was not checked. */
  readonly formatIgnored: string | null
  /** For the row of a batch: number of its calls, and of those without a result. Null for all other rows. */
  readonly batchCalls: number | null
  readonly batchFailed: number | null
}

/** Bodies of one attached call, as JSON texts of bounded length. */
export interface RequestBodies {
  /** Request id of the call. */
  readonly id: string
  readonly atMs: number
  /**
   * Time at which the bodies are deleted, if the key or the project has its own retention. If null, then the retention of {@link LogBounds} applies.
   */
  readonly expiresAtMs: number | null
  readonly request: string
  /** Body of the answer. Null if the call failed, or if the answer was too large to record. */
  readonly answer: string | null
  /** First characters of the prompt and of the answer. Null if the body has no text. */
  readonly promptPreview: string | null
  readonly answerPreview: string | null
}

export type RequestPreview = Pick<RequestBodies, 'id' | 'promptPreview' | 'answerPreview'>

/** Status of a call that its caller cancelled or left, as nginx logs it. */
export const CANCELLED_STATUS = 499

/**
 * Whether a request failed: its caller received an error. A refused call (429, 404) has failed, but a cancelled call has not. The usage ledger, the
 * history of metrics and the filter {@link RequestQuery.isFailed} count failures by this definition, so that all screens show equal numbers. Calls
 * without a valid key do not count, because they belong to no project. Batches do not count, because their lines do. Attempts, of which a request may
 * have several, are counted separately.
 */
export function isFailedStatus(status: number): boolean {
  return status >= 400 && status !== CANCELLED_STATUS
}

/** Position in the list of requests, which is sorted by the end time of the requests and then by row number. */
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
  /** First and last HTTP status of a range. Cancelled requests (status 499) match only if the range begins with 499, because they are no errors. */
  readonly statuses?: readonly [number, number] | undefined
  /** Whether only failed requests match, by the definition of {@link isFailedStatus}. Default: false. */
  readonly isFailed?: boolean
  /** One error code, or several separated by commas. */
  readonly errorCode?: string | undefined
  readonly jobId?: string | undefined
  readonly batchId?: string | undefined
  /** Whether the lines of batches are left out. A batch then has only the row of its own job. Default: false. */
  readonly isWithoutLines?: boolean
  /** Whether batches are left out. A list with lines sets this, because the row of a batch has the sums of its lines. Default: false. */
  readonly isWithoutBatches?: boolean
  readonly traceId?: string | undefined
  /** Number of the SDK's retry. This filter requires `project`, because its index begins with the project. */
  readonly sdkRetry?: number | undefined
  /** Requests that ended at this time or later, and before `untilMs`. */
  readonly sinceMs?: number | undefined
  readonly untilMs?: number | undefined
  readonly durationMsMin?: number | undefined
  readonly after?: RequestCursor | undefined
  /** Whether the page begins with the oldest request. Default: with the newest. */
  readonly isOldestFirst?: boolean
  readonly limit: number
}

export interface RequestPage {
  readonly rows: readonly RequestRow[]
  /** Position of the next page. Null after the last page. A page may have fewer rows than the limit and still have a next page. */
  readonly next: RequestCursor | null
}

export interface RequestBounds {
  readonly keepMs: number
  /**
   * Approximate maximum rows of the log. Rows are numbered, and the count is the difference of the highest and the lowest number. Unused numbers
   * therefore count as rows.
   */
  readonly rowsMax: number
}

export interface LogBounds extends RequestBounds {
  /** Bounds of the recorded bodies. Default: no bounds. */
  readonly bodies?: RequestBounds
}

export const UNBOUNDED: RequestBounds = { keepMs: Number.MAX_SAFE_INTEGER, rowsMax: Number.MAX_SAFE_INTEGER }

/** Requests of the log with equal project, key, model and outcome. */
export interface RequestOutcome {
  readonly project: string
  readonly keyId: string
  readonly model: string | null
  readonly status: number
  readonly errorCode: string | null
  /** Whether a worker ran the requests. False: the requests were refused before an attempt. */
  readonly isRun: boolean
  readonly calls: number
  /** Requests among these that an open circuit breaker refused. */
  readonly notSent: number
  readonly firstEndedAtMs: number
  readonly lastEndedAtMs: number
  /** Most frequent error message (`message`), number of requests with this message (`messageCalls`), and id of the newest of them (`newestId`). */
  readonly message: string | null
  readonly messageCalls: number
  readonly newestId: string
}

export interface OutcomePage {
  readonly outcomes: readonly RequestOutcome[]
  /** Position of the next page. Null if all requests were counted. */
  readonly next: RequestCursor | null
}

/** Maximum rows that a count reads. */
export const COUNTED_MAX = 10_000

export interface RequestCount {
  readonly count: number
  /** Whether more requests may match than were read. */
  readonly isLowerBound: boolean
}

export interface RequestLog {
  /** Adds rows. A row with the id and start time of a stored row is ignored. A batch of rows may therefore be sent again after a lost response. */
  add(rows: readonly RequestRow[]): Promise<void>
  /**
   * Returns a page of requests, newest first by default. Each page reads a bounded number of rows. If few of these rows match, then the
   * page is short, and the search continues on the next page.
   */
  list(query: RequestQuery): Promise<RequestPage>
  /**
   * Returns the last request with this id.
   *
   * @param project Only requests of this project. If undefined, requests of all projects
   */
  find(id: string, project?: string): Promise<RequestRow | undefined>
  /**
   * Counts the requests that match the query by outcome, the most frequent first. Each page reads at most 5,000 rows.
   *
   * @param hasUpstreamMessages Whether messages of upstream servers replace those that callers received
   */
  outcomes(query: Omit<RequestQuery, 'limit'>, hasUpstreamMessages?: boolean): Promise<OutcomePage>
  /** Counts the requests that match the query, up to {@link COUNTED_MAX}. */
  count(query: Omit<RequestQuery, 'limit'>): Promise<RequestCount>
  /** End of the oldest request in the log. Undefined if the log is empty. */
  startsAtMs(): Promise<number | undefined>
  addBodies(rows: readonly RequestBodies[]): Promise<void>
  findBodies(id: string): Promise<RequestBodies | undefined>
  /**
   * Previews of the requests whose bodies are recorded, in any order.
   *
   * @param ids At most {@link REQUESTS_MAX} request ids
   */
  previews(ids: readonly string[]): Promise<RequestPreview[]>
}

export interface HasRequests {
  readonly requests: RequestLog
}
