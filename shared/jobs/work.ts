/** What takes the same places on a worker: jobs of one kind for one model. */
export interface Work {
  readonly kind: string
  readonly model: string
}

/** Names work in maps. A kind has no space in it. */
export function workKey({ kind, model }: Work): string {
  return `${kind} ${model}`
}
