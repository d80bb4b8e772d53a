import { FILETYPE } from './abi.ts'
import { Directory, type Node } from './file-tree.ts'
import type { GuestMemory } from './memory.ts'

/** Writes the 64 bytes of a `filestat`. If the node is undefined, then the values describe a stream. */
export function writeFileStat(memory: GuestMemory, out: number, node: Node | undefined): void {
  memory.bytes(out, 64).fill(0)
  memory.setU64(out + 24, 1n)
  if (!node) return memory.setU8(out + 16, FILETYPE.characterDevice)
  memory.setU64(out + 8, node.inode)
  memory.setU8(out + 16, node instanceof Directory ? FILETYPE.directory : FILETYPE.regularFile)
  memory.setU64(out + 32, node instanceof Directory ? 0n : BigInt(node.size))
  for (const field of [40, 48, 56]) memory.setU64(out + field, node.modifiedNs)
}
