"""The job controllers: pods, Services and PodGroups of the job kinds that users' guides promise."""
