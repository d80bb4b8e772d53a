import { mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/**
 * CPU of this process and of all that it starts, ended ones included, by a control group (cgroup v2) of its own: what a
 * parent does not wait for is in no process's figures. Dispose it.
 */
export class CpuGroup implements Disposable {
  readonly #directory: string
  readonly #origin: string

  private constructor(directory: string, origin: string) {
    this.#directory = directory
    this.#origin = origin
  }

  /** Moves this process into a group. Undefined where it may not make one: it takes root, or a delegated group. */
  static open(): CpuGroup | undefined {
    try {
      const mount = /^(?:\S+ ){4}(\S+) .* - cgroup2 /m.exec(readFileSync('/proc/self/mountinfo', 'utf8'))?.[1] ?? ''
      const own = /^0::(.*)$/m.exec(readFileSync('/proc/self/cgroup', 'utf8'))?.[1] ?? '/'
      const origin = join(mount, own)
      const directory = join(origin, `sluice-bench-${process.pid}`)
      mkdirSync(directory)
      writeFileSync(join(directory, 'cgroup.procs'), String(process.pid))
      return new CpuGroup(directory, origin)
    } catch {
      return undefined
    }
  }

  /** CPU used so far, in milliseconds. */
  get ms(): number {
    const usec = /^usage_usec (\d+)$/m.exec(readFileSync(join(this.#directory, 'cpu.stat'), 'utf8'))?.[1]
    return Number(usec) / 1_000
  }

  [Symbol.dispose](): void {
    writeFileSync(join(this.#origin, 'cgroup.procs'), String(process.pid))
    try {
      rmdirSync(this.#directory)
    } catch {
      // Something that was started still ends; an empty group costs nothing.
    }
  }
}
