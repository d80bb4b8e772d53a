import type { LlamaContextSequence, Token } from 'node-llama-cpp'

/**
 * The sequences of a context, each with the tokens that it has evaluated last: the prompt cache.
 *
 * A prompt takes the free sequence that has its beginning in memory and evaluates only the rest. A sequence belongs to the
 * project of its last call, and its tokens are reused by that project alone: otherwise a project could measure by the time
 * to the first token whether another one had sent the same prompt. Another project gets the sequence emptied.
 *
 * Example: a chat of 1,200 tokens comes back with the answer and a question of 20 tokens. Its sequence has all but these 20.
 */
export class SequencePool {
  /** Sequences that no call holds, in the order of their last use. */
  readonly #free: OwnedSequence[]

  constructor(sequences: readonly LlamaContextSequence[]) {
    this.#free = sequences.map((sequence) => ({ sequence, owner: undefined }))
  }

  /**
   * Takes the free sequence that suits a prompt best: of those of the project the one with the longest common prefix, else
   * one without an owner, else the least recently used. Give it back with {@link put}. The caller holds one of as many slots
   * as there are sequences, so that one is always free.
   *
   * @param project Its id; undefined: no tokens are reused, by this call or after it
   */
  async take(project: string | undefined, prompt: readonly Token[]): Promise<OwnedSequence> {
    const chosen = this.#choose(project, prompt)
    this.#free.splice(this.#free.indexOf(chosen), 1)
    if (chosen.owner === undefined || chosen.owner !== project) {
      chosen.owner = undefined
      try {
        await chosen.sequence.clearHistory()
      } catch (error) {
        this.#free.push(chosen)
        throw error
      }
      chosen.owner = project
    }
    return chosen
  }

  put(owned: OwnedSequence): void {
    this.#free.push(owned)
  }

  #choose(project: string | undefined, prompt: readonly Token[]): OwnedSequence {
    let best: OwnedSequence | undefined
    let longest = 0
    for (const one of this.#free) {
      if (project === undefined || one.owner !== project) continue
      const shared = sharedTokens(one.sequence, prompt)
      if (shared <= longest || !isWorthSharing(shared, one.sequence, prompt)) continue
      best = one
      longest = shared
    }
    const chosen = best ?? this.#free.find(({ owner }) => owner === undefined) ?? this.#free[0]
    if (!chosen) throw new Error('No sequence is free.')
    return chosen
  }
}

/** A sequence and the project whose tokens it has. A call whose evaluation failed removes the owner: the tokens are unknown. */
export interface OwnedSequence {
  readonly sequence: LlamaContextSequence
  owner: string | undefined
}

/** Tokens of a prompt that need no evaluation. The last one always does: the answer is sampled from its logits. */
export function sharedTokens(sequence: LlamaContextSequence, prompt: readonly Token[]): number {
  return Math.min(sequence.compareContextTokens(prompt as Token[]).firstDifferentIndex, prompt.length - 1)
}

/** A short common beginning, such as a system turn, is no reason to overwrite a long chat. */
function isWorthSharing(shared: number, { nextTokenIndex }: LlamaContextSequence, prompt: readonly Token[]): boolean {
  return 2 * shared >= Math.min(prompt.length, nextTokenIndex)
}
