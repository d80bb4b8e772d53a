import type { LlamaContextSequence, Token } from 'node-llama-cpp'

/**
 * The sequences of a context, each with its last evaluated tokens: the prompt cache.
 *
 * A prompt takes the free sequence with the longest common prefix and evaluates only the rest. A sequence belongs to the project of its
 * last call, and only that project reuses its tokens. Otherwise a project could detect by the time to the first token whether another
 * project had sent an equal prompt. For another project the sequence is cleared.
 *
 * Example: a chat of 1,200 tokens returns with the answer and a question of 20 tokens. The sequence already has all tokens except these 20.
 */
export class SequencePool {
  readonly #free: OwnedSequence[]

  constructor(sequences: readonly LlamaContextSequence[]) {
    this.#free = sequences.map((sequence) => ({ sequence, owner: undefined }))
  }

  /**
   * Takes the best free sequence for a prompt. The first choice is the project's sequence with the longest common prefix, then one without
   * an owner, then the least recently used. Return it with {@link put}.
   *
   * The caller must hold a slot. There are as many slots as sequences, so one is always free.
   *
   * @param project Project id; undefined: no tokens are reused, neither by this call nor after it
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

/**
 * A sequence and the project that owns its tokens. If an evaluation failed, then the caller removes the owner, because the tokens are
 * unknown.
 */
export interface OwnedSequence {
  readonly sequence: LlamaContextSequence
  owner: string | undefined
}

/** Tokens of a prompt that need no evaluation. The last token always does, because the answer is sampled from its logits. */
export function sharedTokens(sequence: LlamaContextSequence, prompt: readonly Token[]): number {
  return Math.min(sequence.compareContextTokens(prompt as Token[]).firstDifferentIndex, prompt.length - 1)
}

/** A short common prefix, such as a system turn, does not justify overwriting a long chat. */
function isWorthSharing(shared: number, { nextTokenIndex }: LlamaContextSequence, prompt: readonly Token[]): boolean {
  return 2 * shared >= Math.min(prompt.length, nextTokenIndex)
}
