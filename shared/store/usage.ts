import type { PoolName } from '#schemas/job.ts'

/** Amounts of the ledger: whole numbers, so that sums are exact. */
export interface UsageAmounts {
  /** Calls and durable jobs that ended. */
  readonly calls: number
  readonly failed: number
  readonly inputTokens: number
  /** Of the input, those read from a prompt cache. */
  readonly cachedInputTokens: number
  readonly outputTokens: number
  readonly audioMs: number
  /** Billionths of a US dollar. */
  readonly costNanos: number
}

/** What was used of one model with one key on one day. */
export interface UsageEntry extends UsageAmounts {
  readonly project: string
  readonly keyId: string
  readonly model: string
  /** Of UTC, such as 2030-01-31. */
  readonly day: string
}

/** A durable job that has ended and is not in the ledger yet. */
export interface EndedJob {
  readonly jobId: string
  readonly project: string
  readonly keyId: string
  readonly pool: PoolName
  readonly model: string
  readonly state: string
  /** What its owner said it used; null where none did. */
  readonly metered: unknown
  readonly endedAtMs: number
}

/** What sums may be asked for. */
export interface UsageQuery {
  /** Undefined: every project. */
  readonly project?: string | undefined
  /** Undefined: every key. */
  readonly keyId?: string | undefined
  /** First and last day. */
  readonly from: string
  readonly to: string
  readonly groupBy: 'project' | 'key' | 'model' | 'day'
  readonly limit: number
}

/** What somebody used of late. */
export interface Activity {
  /** The last day on which something ended, such as 2030-01-31; null where there was none. */
  readonly lastDay: string | null
  readonly calls: number
  readonly costNanos: number
}

/** Whose costs are asked for. */
export interface Spender {
  readonly owner: 'project' | 'key'
  readonly id: string
}

/** What a spender has spent, and what its unended durable jobs may cost, in billionths of a US dollar. */
export interface Spent extends Spender {
  readonly costNanos: number
  readonly reservedNanos: number
}

/**
 * What was used, by project, key, model and day (docs/usage.md). Durable jobs come into it by themselves: whatever ends one
 * notes it in the same commit, once.
 */
export interface UsageLedger {
  /**
   * Adds what a process has counted.
   *
   * @param batch Numbers the batches of `boot` from 1: the same again adds nothing, so that one whose answer was lost may be sent again.
   */
  add(boot: string, batch: number, entries: readonly UsageEntry[]): Promise<void>
  /** Durable jobs that have ended and are not in the ledger, at most `limit`. */
  listEnded(limit: number): Promise<EndedJob[]>
  /** Enters ended jobs, each once, however many try. */
  enter(jobs: readonly (UsageEntry & { readonly jobId: string })[]): Promise<void>
  /** Sums by what they are grouped by, in its order. */
  sum(query: UsageQuery): Promise<(UsageAmounts & { readonly group: string })[]>
  /** The last day of each since one day, and what it used from a later one on; in the order asked, at most 500. */
  activity(of: readonly Spender[], since: string, from: string): Promise<Activity[]>
  /**
   * Billionths of a dollar that were spent from one day to another, and those that jobs hold whose cost is not entered yet. At most
   * 500 spenders; those that spent nothing may be left out.
   */
  spent(of: readonly Spender[], from: string, to: string): Promise<Spent[]>
}

/** What keeps a ledger beside its jobs. */
export interface HasUsage {
  readonly usage: UsageLedger
}
