/** What takes the same places on a worker: jobs of one kind for one model. */
export interface Work {
  readonly kind: string
  readonly model: string
}

/** The key of a {@link Work} in maps: its kind, a space, its model. No kind has a space in its name. */
export function workKey({ kind, model }: Work): string {
  return `${kind} ${model}`
}
