import { existsSync, readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import Docker from 'dockerode'
import { LABEL } from '#shared/sandbox/docker/container.ts'
import { findDocker, type TestDocker } from '../../test/support/sandbox/docker.ts'
import { CpuGroup } from '../machine/cpu-group.ts'
import { parentOf, startedPids, togetherMib } from '../machine/process-tree.ts'
import { machineCpuMs } from '../machine/usage.ts'

/** Who works for a run: this process and what it started, or the Docker daemon and its containers as well. */
export type Side = 'started' | 'docker'

/** At rest: in such a time less CPU was used than this share of a core. */
const WINDOW_MS = 200
const REST_SHARE = 0.1
/** How long rest is waited for: by our own CPU it comes; a machine that others keep busy may never rest. */
const REST_MS_MAX = { own: 30_000, machine: 2_000 }

/** The process above a container, of any runtime; the kernel gives the first 15 letters of a name. */
const SHIM = 'containerd-shim'

/** What sandboxes cost: CPU and memory of all processes that work for them. Finds or starts a Docker daemon; dispose it. */
export class SandboxMeter implements AsyncDisposable {
  readonly #group: CpuGroup | undefined
  readonly #docker: TestDocker | string
  /** Processes that were there before any sandbox. */
  readonly #others: ReadonlySet<number>

  private constructor(group: CpuGroup | undefined, docker: TestDocker | string) {
    this.#group = group
    this.#docker = docker
    this.#others = new Set(startedPids(process.pid))
  }

  static async open(): Promise<SandboxMeter> {
    const group = CpuGroup.open()
    const find = () => findDocker({ cgroupParent: group?.containers })
    return new SandboxMeter(group, await (group?.asDaemon(find) ?? find()))
  }

  /** What the daemon's clients are told (DOCKER_HOST). Undefined: there is none. */
  get dockerHost(): string | undefined {
    return typeof this.#docker === 'string' ? undefined : `unix://${this.#docker.socketPath}`
  }

  /** Why there is no CPU of a side. Undefined: there is. */
  whyNoCpu(side: Side): string | undefined {
    if (this.#group === undefined) return 'this user may make no control group to count it'
    if (side === 'started' || typeof this.#docker === 'string' || this.#docker.isPrivate) return undefined
    return 'a Docker daemon ran already, and what it does for others cannot be told apart'
  }

  /** CPU that a side has used so far, in milliseconds, ended processes included. NaN where nobody may tell. */
  cpuMs(side: Side): number {
    if (this.#group === undefined || this.whyNoCpu(side) !== undefined) return Number.NaN
    return side === 'docker' ? this.#group.allMs : this.#group.startedMs
  }

  /** Waits until a side does nothing: what the last run left is removed, and what the next ones need is there. */
  async untilRest(side: Side, signal: AbortSignal): Promise<void> {
    const isKnown = this.whyNoCpu(side) === undefined
    const usedMs = () => (isKnown ? this.cpuMs(side) : machineCpuMs())
    const giveUpAt = performance.now() + (isKnown ? REST_MS_MAX.own : REST_MS_MAX.machine)
    for (let before = usedMs(); performance.now() < giveUpAt; before = usedMs()) {
      await sleep(WINDOW_MS, undefined, { signal })
      if (usedMs() - before < REST_SHARE * WINDOW_MS) return
    }
  }

  /**
   * Resident memory of an interpreter that waits for a run, in MiB: a container's processes and its shim, or what this
   * process started for a sandbox.
   *
   * @param idle How many wait
   */
  async idleMib(side: Side, idle: number): Promise<number> {
    if (side === 'docker') return await this.#containerMib()
    return togetherMib(startedPids(process.pid).filter((pid) => !this.#others.has(pid))) / idle
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (typeof this.#docker !== 'string') await this.#docker.stop()
    this.#group?.[Symbol.dispose]()
  }

  /** Mean of our containers. NaN where their processes are another machine's. */
  async #containerMib(): Promise<number> {
    if (typeof this.#docker === 'string') return Number.NaN
    const docker = new Docker({ socketPath: this.#docker.socketPath })
    const found = await docker.listContainers({ filters: { label: [`${LABEL}=${process.pid}`] } })
    const states = await Promise.all(found.map(({ Id }) => docker.getContainer(Id).inspect()))
    const shims = states.map(({ State }) => parentOf(State.Pid) ?? 0).filter((pid) => nameOf(pid) === SHIM)
    return shims.reduce((sum, shim) => sum + togetherMib([shim, ...startedPids(shim)]), 0) / shims.length
  }
}

/** Empty when it is gone, or on another machine. */
function nameOf(pid: number): string {
  const path = `/proc/${pid}/comm`
  return existsSync(path) ? readFileSync(path, 'utf8').trim() : ''
}
