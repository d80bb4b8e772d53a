import type { ApiKey } from '#shared/keys/keys.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { callsName } from '#shared/limits/fleet-counts.ts'
import type { RunningLimits, TenantReads } from '#shared/store/tenants.ts'
import type { Fleet } from './fleet.ts'
import { limitIsZero, refusal } from './refusals.ts'
import { Running } from './running.ts'

/** What {@link ConcurrencyLimits} need. */
export interface PlacesOptions {
  /** How many calls and durable jobs of a project may run at once; undefined: any number. */
  mostOf(project: string): number | undefined
  /** Undefined: no durable jobs are kept. */
  readonly tenants: Pick<TenantReads, 'running'> | undefined
  /** Undefined: this ingress is the only one. */
  readonly fleet: Fleet | undefined
  /** Monotonic, in milliseconds. */
  readonly clock: () => number
}

/** What runs of a project, and how much may. */
export interface SlotsTaken {
  readonly most: number
  readonly calls: number
  readonly jobs: number
}

/**
 * The limit of a project on what runs at once, calls and durable jobs together, in the whole fleet (docs/keys.md, What runs at
 * once). A call says first that it is there, and looks then how much runs; a claim of a durable job looks while nobody else
 * may say anything. So of the last place either gets it, or neither.
 *
 * Only calls that are run attached are counted here: a durable job waits for its place in the store.
 */
export class ConcurrencyLimits implements RunningLimits {
  readonly #options: PlacesOptions
  /** Of each project that has such a limit. */
  readonly #running = new Map<string, Running>()

  constructor(options: PlacesOptions) {
    this.#options = options
  }

  /**
   * An attached call begins.
   *
   * @returns Says that it has ended; undefined where nothing bounds it, at once.
   * @throws ServiceError `rate_limit_exceeded` where as much runs as may, `permission_denied` where that is nothing
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
    return this.#running.get(project)?.here ?? 0
  }

  /** What runs of a project now; undefined where nothing bounds it. Never rejects but while the store is away. */
  async takenOf(project: string): Promise<SlotsTaken | undefined> {
    const most = this.#options.mostOf(project)
    return most === undefined ? undefined : { most, ...(await this.#look(this.#runningOf(project), project)) }
  }

  async #enter(project: string, most: number): Promise<() => void> {
    if (most === 0) throw limitIsZero('project', 'calls and jobs at once')
    const running = this.#runningOf(project)
    running.here++
    const leave = () => {
      running.here--
      this.#options.fleet?.note(running)
    }
    try {
      const { calls, jobs } = await this.#look(running, project)
      if (calls + jobs > most) throw full({ most, calls: calls - 1, jobs })
      return leave
    } catch (error) {
      leave()
      throw error
    }
  }

  /** Says how many calls run here, and hears what runs beside. */
  async #look(running: Running, project: string): Promise<{ calls: number; jobs: number }> {
    const { clock, fleet, tenants } = this.#options
    if (!fleet) return { jobs: (await tenants?.running(project)) ?? 0, calls: running.here }
    if (fleet.isThere) await fleet.ask([running])
    else fleet.note(running)
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

function full({ most, calls, jobs }: SlotsTaken) {
  return refusal(`This project may run ${most} calls and jobs at once, and runs ${calls} and ${jobs}.`, 1_000)
}
