import { execFileSync, spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'

/**
 * Pins the processes under measurement to the last core, and this process with its later children to the other cores. Targets with
 * different numbers of processes then have the same CPU. Without a second core or `taskset`, nothing is pinned.
 */
export class OneCore implements Disposable {
  readonly #cores = coresOf(process.pid)
  readonly isPinned = this.#cores.length > 1 && spawnSync('taskset', ['--version']).error === undefined

  constructor() {
    this.release(process.pid)
  }

  take(pid: number): void {
    this.#setCores(pid, this.#cores.slice(-1))
  }

  release(pid: number): void {
    this.#setCores(pid, this.#cores.slice(0, -1))
  }

  [Symbol.dispose](): void {
    this.#setCores(process.pid, this.#cores)
  }

  /**
   * Sets the cores on which the threads of a process may run. All existing threads are changed. Later threads and children inherit the
   * setting (man 2 sched_setaffinity).
   */
  #setCores(pid: number, cores: readonly number[]): void {
    if (!this.isPinned) return
    execFileSync('taskset', ['--all-tasks', '--cpu-list', '--pid', cores.join(','), String(pid)], { stdio: 'pipe' })
  }
}

/** Returns the cores that a process may use. The kernel lists them in the form `0-3,8` (man 5 proc). */
function coresOf(pid: number): number[] {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  const [, list = ''] = /^Cpus_allowed_list:\s*(\S+)$/m.exec(status) ?? []
  return list.split(',').flatMap((range) => {
    const [first = 0, last = first] = range.split('-').map(Number)
    return Array.from({ length: last - first + 1 }, (_, index) => first + index)
  })
}
