import { execFileSync, spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'

/**
 * Keeps what is measured on one core of its own, and this process and what it starts on the others. Disposing it gives this
 * process all of its cores back.
 */
export class OneCore implements Disposable {
  readonly #cores = coresOf(process.pid)

  constructor() {
    this.release(process.pid)
  }

  /** Why there can be none here; undefined: there can. */
  static get problem(): string | undefined {
    if (coresOf(process.pid).length < 2) return 'the machine has no core to spare'
    const { error } = spawnSync('taskset', ['--version'])
    return error && `there is no taskset (util-linux): ${error.message}`
  }

  /** Moves a process to the core that is measured. */
  take(pid: number): void {
    setCores(pid, this.#cores.slice(-1))
  }

  /** Moves a process away from the core that is measured. */
  release(pid: number): void {
    setCores(pid, this.#cores.slice(0, -1))
  }

  [Symbol.dispose](): void {
    setCores(process.pid, this.#cores)
  }
}

/** All threads of the process; those that it starts later do as their makers (man 2 sched_setaffinity). */
function setCores(pid: number, cores: readonly number[]): void {
  execFileSync('taskset', ['--all-tasks', '--cpu-list', '--pid', cores.join(','), String(pid)], { stdio: 'pipe' })
}

/** Such as `0-3,8` (man 5 proc). */
function coresOf(pid: number): number[] {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  const [, list = ''] = /^Cpus_allowed_list:\s*(\S+)$/m.exec(status) ?? []
  return list.split(',').flatMap((range) => {
    const [first = 0, last = first] = range.split('-').map(Number)
    return Array.from({ length: last - first + 1 }, (_, index) => first + index)
  })
}
