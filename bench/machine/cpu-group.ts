import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/*
 * A control group counts the CPU of all that ever was in it, ended processes and removed groups below it included. So it
 * tells also of what a parent does not wait for, and of what is nobody's child, as a container and its shim are.
 *
 *   sluice-bench-<pid>     all of it
 *   ├── bench              this process and what it starts
 *   ├── daemon             a Docker daemon that was started here
 *   └── containers         where that daemon puts its containers
 *
 * Version 2 lets groups with processes have no groups below them: nothing is in the upper one itself.
 */

/** A hierarchy of groups, and this process's place in it. */
interface Hierarchy {
  readonly mount: string
  readonly own: string
  /** CPU used so far by a group of it, in milliseconds. */
  readonly cpuMsOf: (directory: string) => number
}

/** CPU of this process, and of a Docker daemon beside it, in control groups of their own. Dispose it. */
export class CpuGroup implements Disposable {
  readonly #hierarchy: Hierarchy
  readonly #directory: string
  /** What a daemon is told as the parent of its containers' groups (`--cgroup-parent`). */
  readonly containers: string

  private constructor(hierarchy: Hierarchy, directory: string) {
    this.#hierarchy = hierarchy
    this.#directory = directory
    this.containers = join(directory, 'containers').slice(hierarchy.mount.length)
    for (const name of ['bench', 'daemon', 'containers']) mkdirSync(join(directory, name))
    this.#enter('bench')
  }

  /** Moves this process into a group. Undefined where it may not make one: it takes root, or a delegated group. */
  static open(): CpuGroup | undefined {
    const hierarchy = findHierarchy()
    if (hierarchy === undefined) return undefined
    const { mount, own } = hierarchy
    // First at the top: below a group of version 2 that has processes no container may be.
    for (const parent of [mount, join(mount, own)]) {
      const directory = join(parent, `sluice-bench-${process.pid}`)
      try {
        mkdirSync(directory)
        return new CpuGroup(hierarchy, directory)
      } catch {
        removeGroup(directory)
      }
    }
    return undefined
  }

  /** CPU of this process and of all that it started, daemon apart, in milliseconds. */
  get startedMs(): number {
    return this.#hierarchy.cpuMsOf(join(this.#directory, 'bench'))
  }

  /** The same with the daemon, its helpers and its containers. */
  get allMs(): number {
    return this.#hierarchy.cpuMsOf(this.#directory)
  }

  /** Does what starts a daemon: what is started meanwhile counts as the daemon's, with all that it starts later. */
  async asDaemon<T>(work: () => Promise<T>): Promise<T> {
    this.#enter('daemon')
    try {
      return await work()
    } finally {
      this.#enter('bench')
    }
  }

  [Symbol.dispose](): void {
    const { mount, own } = this.#hierarchy
    writeFileSync(join(mount, own, 'cgroup.procs'), String(process.pid))
    const path = this.#directory.slice(mount.length)
    // A daemon makes the parent of its containers in every hierarchy, and leaves it there.
    for (const each of mounts()) removeGroup(join(each.directory, path))
  }

  #enter(name: 'bench' | 'daemon'): void {
    writeFileSync(join(this.#directory, name, 'cgroup.procs'), String(process.pid))
  }
}

/** Version 1 where it counts CPU: beside it version 2 may be mounted without any controller. */
function findHierarchy(): Hierarchy | undefined {
  const groups = readOrEmpty('/proc/self/cgroup')
  const v1 = mounts().find(({ type, options }) => type === 'cgroup' && options.includes('cpuacct'))
  if (v1 !== undefined) {
    const own = /^\d+:(?:[^:]*,)?cpuacct(?:,[^:]*)?:(.*)$/m.exec(groups)?.[1] ?? '/'
    const cpuMsOf = (directory: string) => Number(readFileSync(join(directory, 'cpuacct.usage'), 'utf8')) / 1e6
    return { mount: v1.directory, own, cpuMsOf }
  }
  const v2 = mounts().find(({ type }) => type === 'cgroup2')
  if (v2 === undefined) return undefined
  const own = /^0::(.*)$/m.exec(groups)?.[1] ?? '/'
  const cpuMsOf = (directory: string) =>
    Number(/^usage_usec (\d+)$/m.exec(readFileSync(join(directory, 'cpu.stat'), 'utf8'))?.[1]) / 1_000
  return { mount: v2.directory, own, cpuMsOf }
}

/** All hierarchies (man 5 proc_pid_mountinfo). */
function mounts(): { directory: string; type: string; options: string[] }[] {
  const lines = readOrEmpty('/proc/self/mountinfo').matchAll(/^(?:\S+ ){4}(\S+) .* - (cgroup2?) \S+ (\S+)$/gm)
  return [...lines].map(([, directory = '', type = '', options = '']) => ({
    directory,
    type,
    options: options.split(','),
  }))
}

/** Something that was started may still end in it; then it stays, and an empty group costs nothing. */
function removeGroup(directory: string): void {
  const parts = ['bench', 'daemon', 'containers'].map((name) => join(directory, name))
  for (const path of [...parts, directory].filter((path) => existsSync(path))) {
    try {
      rmdirSync(path)
    } catch {
      // See above.
    }
  }
}

/** There are none on other systems than Linux. */
function readOrEmpty(path: string): string {
  return existsSync(path) ? readFileSync(path, 'utf8') : ''
}
