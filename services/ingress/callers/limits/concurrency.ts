import type { ApiKey } from '#shared/keys/keys.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { callsName } from '#shared/limits/fleet-counts.ts'
import type { RunningLimits, TenantReads } from '#shared/store/tenants.ts'
import type { Fleet } from './fleet.ts'
import { limitIsZero, refusal } from './refusals.ts'
import { Running } from './running.ts'

export interface ConcurrencyOptions {
  /** Maximum concurrent calls and durable jobs of a project; undefined: no limit. */
  mostOf(project: string): number | undefined
  /** Undefined if the deployment has no durable jobs. */
  readonly tenants: Pick<TenantReads, 'running'> | undefined
  /** Undefined if this ingress is the only one. */
  readonly fleet: Fleet | undefined
  readonly clock: () => number
}

export interface ConcurrencyUse {
  readonly most: number
  readonly calls: number
  readonly jobs: number
}

/**
 * Concurrency limit per project, for attached calls and durable jobs together, over the whole fleet
 * (docs/operate/keys.md, What runs at once).
 *
 * A call increments the shared counter, then reads the number of running calls and jobs. A claim of a durable job reads
 * both under a lock of the tenant. The last slot is therefore never taken twice. If a call and a claim compete for it,
 * then both may fail.
 *
 * Only attached calls are counted here. A durable job that exceeds the limit waits in the store.
 */
export class ConcurrencyLimits implements RunningLimits {
  readonly #options: ConcurrencyOptions
  readonly #running = new Map<string, Running>()

  constructor(options: ConcurrencyOptions) {
    this.#options = options
  }

  /**
   * Counts an attached call. Returns undefined if no limit applies.
   *
   * @returns function to call when the call has ended
   * @throws ServiceError `rate_limit_exceeded` if the limit is reached; `permission_denied` if the limit is 0
   */
  enter(key: Pick<ApiKey, 'id' | 'project'>): Promise<() => void> | undefined {
    const project = projectIdOf(key)
    const most = this.#options.mostOf(project)
    return most === undefined ? undefined : this.#enter(project, most)
  }

  mostOf(project: string): number | undefined {
    return this.#options.mostOf(project)
  }

  callsOf(project: string): number {
    return this.#running.get(project)?.local ?? 0
  }

  /** Running calls and jobs of a project; undefined if no limit applies. Rejects only if the store is unreachable. */
  async useOf(project: string): Promise<ConcurrencyUse | undefined> {
    const most = this.#options.mostOf(project)
    return most === undefined ? undefined : { most, ...(await this.#synchronize(this.#runningOf(project), project)) }
  }

  async #enter(project: string, most: number): Promise<() => void> {
    if (most === 0) throw limitIsZero('project', 'concurrent calls and jobs')
    const running = this.#runningOf(project)
    running.local++
    const leave = () => {
      running.local--
      this.#options.fleet?.markChanged(running)
    }
    try {
      const { calls, jobs } = await this.#synchronize(running, project)
      if (calls + jobs > most) throw full({ most, calls: calls - 1, jobs })
      return leave
    } catch (error) {
      leave()
      throw error
    }
  }

  async #synchronize(running: Running, project: string): Promise<{ calls: number; jobs: number }> {
    const { clock, fleet, tenants } = this.#options
    if (!fleet) return { jobs: (await tenants?.running(project)) ?? 0, calls: running.local }
    if (fleet.isReachable) await fleet.synchronize([running])
    else fleet.markChanged(running)
    return { calls: running.all(clock()), jobs: running.jobs(clock()) }
  }

  #runningOf(project: string): Running {
    let running = this.#running.get(project)
    if (!running) {
      running = new Running(callsName(project))
      this.#running.set(project, running)
    }
    return running
  }
}

function full({ most, calls, jobs }: ConcurrencyUse) {
  return refusal(
    `This project is at its limit of ${most} concurrent calls and jobs: ${calls} calls and ${jobs} jobs are running.`,
    1_000,
  )
}
