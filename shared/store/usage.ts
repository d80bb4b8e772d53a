import type { PoolName } from '#schemas/job.ts'

/** Amounts of the ledger: whole numbers, so that sums are exact. */
export interface UsageAmounts {
  readonly calls: number
  readonly failed: number
  readonly inputTokens: number
  /** Part of the input tokens that was read from a prompt cache. */
  readonly cachedInputTokens: number
  readonly outputTokens: number
  readonly audioMs: number
  readonly costNanos: number
}

export interface UsageEntry extends UsageAmounts {
  readonly project: string
  readonly keyId: string
  readonly model: string
  /** UTC day, such as 2030-01-31. */
  readonly day: string
}

export interface EndedJob {
  readonly jobId: string
  readonly project: string
  readonly keyId: string
  readonly pool: PoolName
  readonly model: string
  readonly state: string
  /** Usage reported by the owner; null if none was reported. */
  readonly metered: unknown
  readonly endedAtMs: number
}

export interface UsageQuery {
  readonly project?: string | undefined
  readonly keyId?: string | undefined
  readonly from: string
  readonly to: string
  readonly groupBy: 'project' | 'key' | 'model' | 'day'
  readonly limit: number
}

export interface Activity {
  readonly lastDay: string | null
  readonly calls: number
  readonly costNanos: number
}

export interface Spender {
  readonly owner: 'project' | 'key'
  readonly id: string
}

/** Spent amount, and the reservations of unended durable jobs, in billionths of a US dollar. */
export interface Spent extends Spender {
  readonly costNanos: number
  readonly reservedNanos: number
}

/** The usage ledger, by project, key, model and day (docs/operate/usage.md). The transition that ends a durable job records it in the same commit, once. */
export interface UsageLedger {
  /**
   * Adds a batch of counted usage.
   *
   * @param batch Number of the batch of `boot`, from 1. A repeated number adds nothing, so a batch whose answer was lost may be sent again.
   */
  add(boot: string, batch: number, entries: readonly UsageEntry[]): Promise<void>
  listEnded(limit: number): Promise<EndedJob[]>
  /** Adds ended jobs to the ledger, each exactly once, even with concurrent callers. */
  enter(jobs: readonly (UsageEntry & { readonly jobId: string })[]): Promise<void>
  sum(query: UsageQuery): Promise<(UsageAmounts & { readonly group: string })[]>
  /** Last active day since `since`, and usage since `from`, in the order of `of`; at most 500 spenders. */
  activity(of: readonly Spender[], since: string, from: string): Promise<Activity[]>
  /** Spending between two days, and reservations whose cost is not entered yet. At most 500 spenders; those without spending may be omitted. */
  spent(of: readonly Spender[], from: string, to: string): Promise<Spent[]>
}

export interface HasUsage {
  readonly usage: UsageLedger
}
