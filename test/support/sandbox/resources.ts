/** Lists the resources of Linux that a service could leak. Tests compare the lists from before and after a run. */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { join } from 'node:path'

/** Resources at one moment. */
export interface Resources {
  /** Pids of all descendants of this process. */
  readonly processes: readonly number[]
  /** Mount points in the namespace of this process, except those of Docker daemons. */
  readonly mounts: readonly string[]
  /** Control groups that Sluice has created. */
  readonly cgroups: readonly string[]
  /** Number of open pipes, sockets and files of this process, by kind. */
  readonly descriptors: Readonly<Record<string, number>>
}

const OF_DOCKER = /docker|overlay2|containerd|netns/

export function resources(): Resources {
  return {
    processes: descendants(),
    mounts: lines('/proc/self/mountinfo')
      .map((line) => line.split(' ').slice(3, 5).join(' '))
      .filter((mount) => !OF_DOCKER.test(mount)),
    cgroups: cgroups('/sys/fs/cgroup', 4),
    descriptors: descriptors(),
  }
}

/** Resources in `now` that are not in `before`. */
export function leftSince(before: Resources, now = resources()): string[] {
  const isNew = (known: readonly (number | string)[]) => (item: number | string) => !known.includes(item)
  return [
    ...now.processes.filter(isNew(before.processes)).map((pid) => `process ${pid}: ${commandOf(Number(pid))}`),
    ...now.mounts.filter(isNew(before.mounts)).map((mount) => `mount ${mount}`),
    ...now.cgroups.filter(isNew(before.cgroups)).map((cgroup) => `cgroup ${cgroup}`),
    ...Object.entries(now.descriptors)
      .filter(([kind, count]) => count > (before.descriptors[kind] ?? 0))
      .map(([kind, count]) => `${count} descriptors of kind ${kind}, ${before.descriptors[kind] ?? 0} before`),
  ]
}

function descendants(): number[] {
  const parents = new Map<number, number[]>()
  for (const name of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    const parent = parentOf(name)
    if (parent !== undefined) parents.set(parent, [...(parents.get(parent) ?? []), Number(name)])
  }
  const found: number[] = []
  for (const pending = [process.pid]; pending.length > 0; ) {
    const children = parents.get(pending.pop() ?? 0) ?? []
    found.push(...children)
    pending.push(...children)
  }
  return found
}

/** Returns the pid of a process's parent. Undefined if the process has ended, even if its entry still exists (a zombie). */
function parentOf(pid: string): number | undefined {
  const [state, parent] = stat(Number(pid))
  return state === undefined || state === 'Z' ? undefined : Number(parent)
}

/** Returns the fields of /proc/PID/stat after the process name: state, parent and so on. The name is skipped, because it may contain spaces. */
function stat(pid: number): string[] {
  const [line] = lines(`/proc/${pid}/stat`)
  return line?.slice(line.lastIndexOf(')') + 2).split(' ') ?? []
}

function commandOf(pid: number): string {
  return lines(`/proc/${pid}/cmdline`).join(' ').replaceAll('\0', ' ').slice(0, 200)
}

function cgroups(directory: string, depth: number): string[] {
  if (depth === 0) return []
  const inside = entries(directory).map((name) => join(directory, name))
  return inside.flatMap((path) => [...(path.includes('sluice') ? [path] : []), ...cgroups(path, depth - 1)])
}

function entries(directory: string): string[] {
  try {
    return readdirSync(directory, { withFileTypes: true })
      .filter((entry) => entry.isDirectory())
      .map(({ name }) => name)
  } catch {
    return []
  }
}

function descriptors(): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const name of readdirSync('/proc/self/fd')) {
    const kind = kindOf(`/proc/self/fd/${name}`)
    if (kind !== undefined) counts[kind] = (counts[kind] ?? 0) + 1
  }
  return counts
}

/** Returns the type of an open file descriptor: `socket`, `pipe`, `anon_inode` or `file`. Undefined if it has been closed in the meantime. */
function kindOf(path: string): string | undefined {
  try {
    const target = readlinkSync(path)
    return target.startsWith('/') ? 'file' : target.split(':')[0]
  } catch {
    return undefined
  }
}

function lines(path: string): string[] {
  try {
    return readFileSync(path, 'utf8')
      .split('\n')
      .filter((line) => line !== '')
  } catch {
    return []
  }
}
